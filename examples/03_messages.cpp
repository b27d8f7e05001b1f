// Messages between two ranks: grouped so that nobody waits for anybody's order, and asynchronous so
// that work goes on meanwhile.
#include <chorus/communicator.hpp>
#include <cstdio>
#include <numeric>
#include <vector>

int main() try {
  auto comm = chorus::Communicator::join();
  const int n = comm.world_size();
  const int me = comm.rank();
  if (n < 2) {
    std::printf("needs at least two ranks\n");
    return 0;
  }
  const int next = (me + 1) % n;
  const int previous = (me + n - 1) % n;

  // Everybody sends to the right and receives from the left at once.
  std::vector<int> out(100'000), in(out.size());
  std::iota(out.begin(), out.end(), me);
  comm.group_start();
  comm.send<int>(out, next);
  comm.recv<int>(in, previous);
  comm.group_end();
  bool right = in.front() == previous && in.back() == previous + 99'999;

  // A sum under way while this rank computes; test() lets it move, wait() finishes it.
  std::vector<double> gradient(10'000, me);
  auto request = comm.start({.kind = chorus::Call::Kind::all_reduce,
                             .input = gradient.data(),
                             .output = gradient.data(),
                             .count = gradient.size(),
                             .type = chorus::DataType::float64});
  double busy = 0;
  for (int i = 0; i < 1000 && !request.test(); ++i) busy += 1.0 / (i + 1);
  request.wait();
  right = right && gradient[9'999] == n * (n - 1) / 2.0 && busy >= 0;

  std::printf("rank %d: %s\n", me, right ? "right" : "wrong");
  return right ? 0 : 1;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
