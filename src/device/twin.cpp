#include "device/twin.hpp"

#include <memory>
#include <thread>
#include <vector>

#include "device/host_machine.hpp"
#include "device/interpreter.hpp"

namespace chorus::device {

void run_on_host(const LaunchHead& head, const CallArguments* calls,
                 std::span<BlockShared* const> blocks, std::uint32_t threads) {
  const auto num_blocks = static_cast<std::uint32_t>(blocks.size());
  std::vector<std::unique_ptr<HostBlock>> meetings;
  for (std::uint32_t b = 0; b < num_blocks; ++b) {
    meetings.push_back(std::make_unique<HostBlock>(threads));
  }
  const auto run_thread = [&](std::uint32_t block, std::uint32_t thread) {
    HostMachine machine(*blocks[block], *meetings[block], block, num_blocks, thread);
    Interpreter<HostMachine>(machine, head, calls).run();
  };
  std::vector<std::thread> others;
  for (std::uint32_t i = 1; i < num_blocks * threads; ++i) {
    others.emplace_back(run_thread, i / threads, i % threads);
  }
  run_thread(0, 0);
  for (std::thread& thread : others) thread.join();
}

}  // namespace chorus::device
