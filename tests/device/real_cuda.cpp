// In place of the fake driver, where tests run over the true one: nothing is counted or held.
#include "device/fake/fake_cuda.hpp"

namespace chorus::testing {

bool fake_cuda() { return false; }
int fake_cuda_calls(const char*) { return 0; }
int fake_cuda_calls() { return 0; }
void fake_cuda_fail(const char*, int, int) {}
void fake_cuda_hold(int, bool) {}
void fake_cuda_heal() {}
void fake_cuda_fault(int) {}
void fake_cuda_multiprocessors(int) {}
void fake_cuda_compute_capability(int) {}
void fake_cuda_allocation_waits(bool) {}
void fake_cuda_runtime_device(int) {}
void fake_cuda_peer_access(bool) {}
void fake_cuda_damage(bool) {}
void fake_cuda_gpu_direct(const FakeGpuDirect&) {}
void fake_cuda_watch(std::function<void(std::uint64_t)>, std::function<void()>) {}
FakeLaunch fake_cuda_last_launch() { return {}; }
std::size_t fake_cuda_allocated() { return 0; }
int fake_cuda_frees_of_mapped() { return 0; }

}  // namespace chorus::testing
