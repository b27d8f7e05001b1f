// The CUDA module, which only builds with a toolkit have: opened when it is asked for.
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "ops/gpu.hpp"

namespace trainer {
namespace {

#ifdef TRAINER_CUDA_MODULE
/// Beside the program where it was moved, where it was installed, else where it was built.
void* open_module(std::string& why) {
  std::error_code none;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", none);
  const std::filesystem::path built = TRAINER_CUDA_MODULE;
  for (const auto& path : {program.parent_path() / built.filename(),
                           program.parent_path() / TRAINER_MODULES / built.filename(), built}) {
    if (!std::filesystem::exists(path, none)) continue;
    if (void* const module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return module;
    why = dlerror();
  }
  if (why.empty()) why = built.string() + " is missing";
  return nullptr;
}
#endif

}  // namespace

std::unique_ptr<Gpu> open_gpu([[maybe_unused]] int rank) {
#ifdef TRAINER_CUDA_MODULE
  std::string why;
  void* const module = open_module(why);
  if (module == nullptr) {
    throw chorus::InputError(fmt::format(
        "--backend cuda cannot be opened ({}): install the libraries of the CUDA toolkit that this "
        "was built with, or take --backend cpu",
        why));
  }
  using Open = Gpu*(int, const char**);
  auto* const open = reinterpret_cast<Open*>(dlsym(module, "trainer_open_gpu"));
  const char* cause = "the module is of another build";
  Gpu* const gpu = open == nullptr ? nullptr : open(rank, &cause);
  if (gpu == nullptr) {
    throw chorus::InputError(
        fmt::format("--backend cuda finds no GPU ({}): run it on a machine with one and NVIDIA's "
                    "driver, or take --backend cpu",
                    cause));
  }
  return std::unique_ptr<Gpu>(gpu);
#else
  throw chorus::InputError(
      "--backend cuda is not in this build, which found no CUDA toolkit with cuBLASLt: install "
      "one, "
      "configure again with CHORUS_CUDA=ON and CUDA_HOME, or take --backend cpu");
#endif
}

double measured_gemm_peak(Gpu& gpu, bool bfloat16) {
  const int rows = gpu.emulated() ? 256 : 4096;
  const auto count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(rows);
  void* const memory = gpu.allocate(3 * count * sizeof(float));
  auto* const at = static_cast<float*>(memory);
  Gemm how{.b_transposed = true, .m = rows, .n = rows, .k = rows};
  how.A = at;
  how.B = at + count;
  how.C = at + 2 * count;
  how.lda = how.ldb = how.ldc = rows;
  how.bfloat16 = bfloat16;
  constexpr int kInOne = 8;  // so that starting one and waiting for it do not count
  double best = 0;
  for (int tries = 0; tries < 10; ++tries) {
    gpu.finish();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kInOne; ++i) gpu.gemm(how);
    gpu.finish();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::max(best, 2.0 * rows * double(count) * kInOne / took.count());
  }
  gpu.release(memory);
  return best;
}

}  // namespace trainer
