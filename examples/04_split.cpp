// Sub-communicators: ranks laid out as a grid, sums along rows and then along columns.
#include <chorus/communicator.hpp>
#include <cstdint>
#include <cstdio>
#include <vector>

int main() try {
  auto world = chorus::Communicator::join();
  const int n = world.world_size();
  const int columns = n % 2 == 0 ? 2 : 1;

  auto row = world.split(world.rank() / columns, world.rank());
  auto column = world.split(world.rank() % columns, world.rank());

  std::vector<std::int64_t> sum{world.rank()};
  row->all_reduce<std::int64_t>(sum);     // sum of my row
  column->all_reduce<std::int64_t>(sum);  // sum of all rows

  const std::int64_t expected = std::int64_t{n} * (n - 1) / 2;
  std::printf("rank %d: row of %d, column of %d, sum %ld\n", world.rank(), row->world_size(),
              column->world_size(), static_cast<long>(sum[0]));
  return sum[0] == expected ? 0 : 1;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
