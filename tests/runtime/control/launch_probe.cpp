// What launch_test and run_test start under each launcher: joins as it was launched, twice, and
// prints what it learned. Exit status 0 if every rank met every other. "launch_probe die R": rank R
// kills itself, the others print why they ended. "launch_probe linger MS": its process ends
// that much later than it has left.
#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "runtime/control/control.hpp"
#include "runtime/launch/launch.hpp"

/// The leak sanitizer asks for this: five bytes of PMIx itself stay behind.
extern "C" [[gnu::visibility("default")]] const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libpmix"; }

namespace {

int wait_for_death(const chorus::Launch& launch, chorus::Rank victim) {
  using namespace chorus;
  const auto control = Control::join(launch.id, launch.rank, launch.world_size, 20'000);
  std::vector<Rank> members;
  for (Rank rank = 0; rank < launch.world_size; ++rank) members.push_back(rank);
  control->open_group("all", members);
  if (launch.rank == victim) ::raise(SIGKILL);
  const std::string sentence = control->await_verdict("all", 20'000).value_or("nothing");
  std::printf("rank %d heard: %s\n", launch.rank, sentence.c_str());
  return 7;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace chorus;
  try {
    const Options options = Options::from_env();
    const Launch launch = Launch::from_env();
    if (argc == 3 && std::strcmp(argv[1], "die") == 0) {
      return wait_for_death(launch, std::atoi(argv[2]));
    }
    std::string met;
    for (int joining = 0; joining < 2; ++joining) {
      std::shared_ptr<void> keep_alive;
      const std::string id = resolve_id(launch, options, keep_alive);
      const auto control =
          Control::join(id, launch.rank, launch.world_size, options.join_timeout_ms);
      std::vector<Rank> members;
      for (Rank rank = 0; rank < launch.world_size; ++rank) members.push_back(rank);
      const std::byte mine{static_cast<unsigned char>(launch.rank + 1)};
      int sum = 0;
      for (const auto& blob : control->exchange("probe", members, {&mine, 1}, 20'000)) {
        sum += blob.empty() ? 0 : std::to_integer<int>(blob[0]);
      }
      met += fmt::format(" {}", sum);
    }
    std::printf("launcher %s rank %d of %d local %d of %d sums%s\n", launch.launcher.c_str(),
                launch.rank, launch.world_size, launch.local_rank, launch.local_world_size,
                met.c_str());
    std::fflush(stdout);
    if (argc == 3 && std::strcmp(argv[1], "linger") == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(argv[2])));
    }
    return 0;
  } catch (const std::exception& error) {
    std::printf("error %s\n", error.what());
    return 1;
  }
}
