// A schedule of one's own: an all-gather in which every block walks around the ring. It is judged
// before it runs, and a mistake in it is named.
#include <chorus/communicator.hpp>
#include <chorus/plan.hpp>
#include <cstdint>
#include <cstdio>
#include <vector>

namespace {

chorus::Schedule ring_all_gather(int n) {
  chorus::Schedule schedule{.name = "my_ring",
                            .collective = {.kind = chorus::CollectiveKind::all_gather},
                            .world_size = n,
                            .num_chunks = n};
  for (int s = 0; s + 1 < n; ++s) {
    auto& step = schedule.steps.emplace_back();
    for (int r = 0; r < n; ++r) {
      step.push_back({.src = r, .dst = (r + 1) % n, .chunk = (r - s + n) % n});
    }
  }
  return schedule;
}

}  // namespace

int main() try {
  auto comm = chorus::Communicator::join();
  const int n = comm.world_size();

  chorus::Schedule schedule = ring_all_gather(n);
  if (n > 1) {
    chorus::Schedule broken = schedule;
    broken.steps.back().pop_back();
    if (comm.rank() == 0)
      std::printf("without its last transfer: %s\n", first_fault(broken)->c_str());
  }
  comm.use({.world_size = n, .entries = {{.max_bytes = UINT64_MAX, .schedule = schedule}}});

  std::vector<int> all(static_cast<std::size_t>(n));
  comm.all_gather<int>(std::vector<int>{comm.rank() * 10}, all);
  bool right = true;
  for (int r = 0; r < n; ++r) right = right && all[r] == r * 10;
  std::printf("rank %d: %s\n", comm.rank(), right ? "right" : "wrong");
  return right ? 0 : 1;
} catch (const chorus::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
