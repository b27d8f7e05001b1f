// Every collective once, each checked. Rank r of n starts from numbers that tell where they came
// from, so a block in the wrong place shows.
#include <chorus/communicator.hpp>
#include <cstdio>
#include <string_view>
#include <vector>

namespace {

int g_wrong = 0;

void expect(bool right, std::string_view what) {
  if (right) return;
  std::printf("wrong: %.*s\n", static_cast<int>(what.size()), what.data());
  ++g_wrong;
}

void run(chorus::Communicator& comm) {
  const int n = comm.world_size();
  const int me = comm.rank();
  const auto size = static_cast<std::size_t>(n);
  const int sum = n * (n - 1) / 2;

  std::vector<int> all(size);
  comm.all_gather<int>(std::vector<int>{me}, all);
  for (int r = 0; r < n; ++r) expect(all[r] == r, "all_gather");

  std::vector<int> mine(1);
  comm.reduce_scatter<int>(all, mine);  // everyone holds 0 … n−1: block r sums to n·r
  expect(mine[0] == n * me, "reduce_scatter");

  std::vector<int> sent(size), got(size);
  for (int r = 0; r < n; ++r) sent[r] = 100 * me + r;
  comm.all_to_all<int>(sent, got);
  for (int r = 0; r < n; ++r) expect(got[r] == 100 * r + me, "all_to_all");

  std::vector<double> value{me == n - 1 ? 2.5 : 0.0};
  comm.broadcast<double>(value, n - 1);
  expect(value[0] == 2.5, "broadcast");

  std::vector<int> total(me == 0 ? 1 : 0);
  comm.reduce<int>(std::vector<int>{me}, total, 0);
  expect(me != 0 || total[0] == sum, "reduce");

  std::vector<int> gathered(me == 0 ? size : 0);
  comm.gather<int>(std::vector<int>{me * me}, gathered, 0);
  for (int r = 0; me == 0 && r < n; ++r) expect(gathered[r] == r * r, "gather");

  std::vector<int> part(1);
  comm.scatter<int>(gathered, part, 0);
  expect(part[0] == me * me, "scatter");

  std::vector<float> mean{static_cast<float>(me)};
  comm.all_reduce<float>(mean, chorus::ReduceOp::avg);
  expect(mean[0] == static_cast<float>(sum) / static_cast<float>(n), "all_reduce, average");

  comm.barrier();
}

}  // namespace

int main() try {
  auto comm = chorus::Communicator::join();
  run(comm);
  if (comm.rank() == 0)
    std::printf("9 collectives on %d ranks: %d wrong\n", comm.world_size(), g_wrong);
  return g_wrong == 0 ? 0 : 1;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
