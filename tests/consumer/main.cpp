// What a program of somebody else needs from the installed library: values, names, errors that can
// be caught, and a communicator.
#include <chorus/communicator.hpp>
#include <chorus/plan.hpp>
#include <chorus/topology.hpp>
#include <cstdio>

int main() {
  setenv("CHORUS_TIMEOUT_MS", "soon", 1);
  try {
    chorus::Options::from_env();
    return 1;
  } catch (const chorus::InputError& error) {
    std::printf("as it should be: %s\n", error.what());
  }
  std::printf("%s\n", chorus::name_of(chorus::DataType::bfloat16).data());
}
