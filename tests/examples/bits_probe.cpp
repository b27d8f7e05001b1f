// Prints, on rank 0, one line per collective with a digest of every rank's result: inputs that
// round differently in every order, so that two launchers (or runs) agree only if they did the
// same.
#include <chorus/communicator.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace {

std::vector<float> awkward(int rank, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank + 1));
  std::vector<float> data(count);
  for (float& value : data) {
    value = std::ldexp(static_cast<float>(random() % 1000) / 7, static_cast<int>(random() % 20));
  }
  return data;
}

std::uint64_t digest(std::span<const float> data) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const std::byte byte : std::as_bytes(data)) {
    hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3;
  }
  return hash;
}

void report(chorus::Communicator& comm, const std::string& name, std::span<const float> result) {
  std::vector<std::uint64_t> digests(static_cast<std::size_t>(comm.world_size()));
  comm.gather<std::uint64_t>(std::vector<std::uint64_t>{digest(result)}, digests, 0);
  if (comm.rank() != 0) return;
  std::printf("%s", name.c_str());
  for (const std::uint64_t value : digests) {
    std::printf(" %016llx", static_cast<unsigned long long>(value));
  }
  std::printf("\n");
}

}  // namespace

int main() try {
  auto comm = chorus::Communicator::join();
  const auto n = static_cast<std::size_t>(comm.world_size());
  for (const std::size_t count : {1UL, 1000UL, 300'000UL}) {
    const std::string size = " " + std::to_string(count);
    const auto mine = awkward(comm.rank(), count);
    const auto blocks = awkward(comm.rank(), count * n);
    std::vector<float> one(count), all(count * n);
    comm.all_reduce<float>(mine, one);
    report(comm, "all_reduce" + size, one);
    comm.all_reduce<float>(mine, one, chorus::ReduceOp::avg);
    report(comm, "all_reduce avg" + size, one);
    comm.reduce_scatter<float>(blocks, one);
    report(comm, "reduce_scatter" + size, one);
    comm.all_gather<float>(mine, all);
    report(comm, "all_gather" + size, all);
    comm.all_to_all<float>(blocks, all);
    report(comm, "all_to_all" + size, all);
    comm.reduce<float>(mine, one, static_cast<int>(n) - 1);
    comm.broadcast<float>(one, static_cast<int>(n) - 1);
    report(comm, "reduce and broadcast" + size, one);
  }
  return 0;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
