// The last rank kills itself between two collectives; the others report what they are told.
#include <chorus/communicator.hpp>
#include <csignal>
#include <cstdio>
#include <vector>

int main() try {
  auto comm = chorus::Communicator::join();
  std::vector<float> data(100);
  comm.all_reduce<float>(data);
  if (comm.rank() == comm.world_size() - 1) std::raise(SIGKILL);
  comm.all_reduce<float>(data);
  return 0;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
