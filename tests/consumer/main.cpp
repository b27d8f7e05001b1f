// What a program of somebody else needs from the installed library: values, names, errors that can
// be caught, and a communicator.
#include <chorus/communicator.hpp>
#include <chorus/topology.hpp>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main() {
  const chorus::Options defaults = chorus::Options::from_env();
  setenv("CHORUS_TIMEOUT_MS", "soon", 1);
  try {
    chorus::Options::from_env();
    return 1;
  } catch (const chorus::InputError& error) {
    std::printf("as it should be: %s\n", error.what());
  }

  chorus::Schedule empty{.name = "nothing", .world_size = 2, .num_chunks = 1};
  const auto fault = chorus::first_fault(empty);
  if (!fault) return 1;
  std::printf("as it should be: %s\n", fault->c_str());

  chorus::Communicator alone = chorus::Communicator::join(defaults);
  std::vector<float> data{1, 2, 3};
  alone.all_reduce<float>(data);
  return data == std::vector<float>{1, 2, 3} ? 0 : 1;
}
