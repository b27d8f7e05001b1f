// What launch_test starts under each launcher: joins as it was launched, twice, and prints what
// it learned. Exit status 0 if every rank met every other.
#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "runtime/control.hpp"
#include "runtime/launch.hpp"

int main() {
  using namespace chorus;
  try {
    const Options options = Options::from_env();
    const Launch launch = Launch::from_env();
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
        sum += std::to_integer<int>(blob.at(0));
      }
      met += fmt::format(" {}", sum);
    }
    std::printf("launcher %s rank %d of %d local %d of %d sums%s\n", launch.launcher.c_str(),
                launch.rank, launch.world_size, launch.local_rank, launch.local_world_size,
                met.c_str());
    return 0;
  } catch (const std::exception& error) {
    std::printf("error %s\n", error.what());
    return 1;
  }
}
