// The smallest program: every rank contributes its number, every rank gets the sum.
//
//   chorus run -n 4 -- ./01_all_reduce          or: mpirun -n 4 ./01_all_reduce
#include <chorus/communicator.hpp>
#include <cstdio>
#include <vector>

int main() try {
  auto comm = chorus::Communicator::join();

  std::vector<float> data(1000, static_cast<float>(comm.rank() + 1));
  comm.all_reduce<float>(data);

  const int n = comm.world_size();
  const auto expected = 0.5F * static_cast<float>(n * (n + 1));
  std::printf("rank %d of %d: sum %g, expected %g\n", comm.rank(), n, data[0], expected);
  return data.front() == expected && data.back() == expected ? 0 : 1;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
