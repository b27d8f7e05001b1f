// A rank of rails_test: calls whose results it checks, and what its host's interfaces carried.
#include <chorus/communicator.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

int expect(bool right, const char* what) {
  if (!right) std::printf("wrong: %s\n", what);
  return right ? 0 : 1;
}

std::int32_t element(int rank, std::size_t i, int round) {
  return static_cast<std::int32_t>(i % 9973) * (rank + 1) + round;
}

int run_round(chorus::Communicator& comm, std::size_t count, int round) {
  const int n = comm.world_size();
  std::vector<std::int32_t> mine(count), all(count * static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < count; ++i) mine[i] = element(comm.rank(), i, round);
  comm.all_gather<std::int32_t>(mine, all);
  bool right = true;
  for (std::size_t i = 0; i < all.size(); ++i) {
    right = right && all[i] == element(static_cast<int>(i / count), i % count, round);
  }
  int wrong = expect(right, "all_gather");
  comm.all_reduce<std::int32_t>(mine);
  right = true;
  for (std::size_t i = 0; i < count; ++i) {
    std::int32_t sum = 0;
    for (int rank = 0; rank < n; ++rank) sum += element(rank, i, round);
    right = right && mine[i] == sum;
  }
  wrong += expect(right, "all_reduce");
  return wrong;
}

}  // namespace

int main() try {
  auto comm = chorus::Communicator::join();
  int wrong = 0;
  int round = 0;
  for (const std::size_t count : {1, 1000, 20'000, 1'000'000, 20'000, 1'000'000, 1'000'000}) {
    wrong += run_round(comm, count, round++);
  }
  for (const auto& entry : std::filesystem::directory_iterator("/sys/class/net")) {
    std::ifstream file(entry.path() / "statistics/tx_bytes");
    std::int64_t bytes = 0;
    file >> bytes;
    std::printf("sent %s %lld\n", entry.path().filename().c_str(), static_cast<long long>(bytes));
  }
  std::fflush(stdout);
  return wrong == 0 ? 0 : 1;
} catch (const chorus::Error& error) {
  std::printf("%s\n", error.what());
  return 1;
}
