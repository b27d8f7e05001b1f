#include "device/twin.hpp"

#include <memory>
#include <thread>
#include <vector>

#include "device/host_machine.hpp"
#include "device/interpreter.hpp"

namespace chorus::device {

void run_on_host(const LaunchHead& head, const CallArguments* calls, std::uint32_t blocks) {
  const auto run_block = [&](std::uint32_t block) {
    const auto shared = std::make_unique<BlockShared>();
    HostMachine machine(*shared, block, blocks);
    Interpreter<HostMachine>(machine, head, calls).run();
  };
  std::vector<std::thread> threads;
  for (std::uint32_t block = 1; block < blocks; ++block) threads.emplace_back(run_block, block);
  run_block(0);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace chorus::device
