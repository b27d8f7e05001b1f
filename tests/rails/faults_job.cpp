// A rank that calls until it is told to end, checks all results, and notes how long each call took.
// Arguments: the file whose existence ends it, and the file to note in.
#include <unistd.h>

#include <chorus/communicator.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <vector>

namespace {

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

std::int32_t element(int rank, std::size_t i, int call) {
  return static_cast<std::int32_t>(i % 9973) * (rank + 1) + call;
}

/// Elements that are not as they should be.
template <typename Expected>
std::int64_t wrong(const std::vector<std::int32_t>& got, const Expected& expected) {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < got.size(); ++i) count += got[i] == expected(i) ? 0 : 1;
  return count;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  auto comm = chorus::Communicator::join();
  std::FILE* const notes = std::fopen(argv[2], "w");
  if (notes == nullptr) return 2;
  const int n = comm.world_size();
  constexpr std::size_t kReduced = 1 << 20, kGathered = 1 << 18;
  std::vector<std::int32_t> data(kReduced), mine(kGathered);
  std::vector<std::int32_t> all(kGathered * static_cast<std::size_t>(n));
  std::vector<std::int32_t> ends(1);
  std::int64_t failures = 0;
  for (int call = 0; ends[0] == 0; ++call) {
    for (std::size_t i = 0; i < data.size(); ++i) data[i] = element(comm.rank(), i, call);
    for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = element(comm.rank(), i, call);
    const std::int64_t begin = now_us();
    comm.all_reduce<std::int32_t>(data);
    const std::int64_t reduced = now_us();
    comm.all_gather<std::int32_t>(mine, all);
    const std::int64_t gathered = now_us();
    ends[0] = comm.rank() == 0 && ::access(argv[1], F_OK) == 0 ? 1 : 0;
    comm.all_reduce<std::int32_t>(ends);
    const std::int64_t end = now_us();
    failures += wrong(data, [&](std::size_t i) {
      std::int32_t sum = 0;
      for (int rank = 0; rank < n; ++rank) sum += element(rank, i, call);
      return sum;
    });
    failures += wrong(all, [&](std::size_t i) {
      return element(static_cast<int>(i / kGathered), i % kGathered, call);
    });
    std::fprintf(notes, "%lld %lld %lld %lld %lld\n", static_cast<long long>(begin),
                 static_cast<long long>(reduced - begin),
                 static_cast<long long>(gathered - reduced), static_cast<long long>(end - gathered),
                 static_cast<long long>(failures));
    std::fflush(notes);
  }
  std::fclose(notes);
  return failures == 0 ? 0 : 1;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "failed call: %s\n", error.what());
  return 1;
}
