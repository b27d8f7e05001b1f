#include "elastic.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <span>
#include <vector>

#include "chorus/error.hpp"

namespace trainer {
namespace {

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}

/// How many wait, as rank 0 knows it.
int num_waiting(const chorus::Communicator& world) {
  try {
    return world.num_waiting();
  } catch (const chorus::BootstrapError&) {  // where the job met nobody is any more
    return 0;
  }
}

/// Until what is left of `world` agrees that it goes on. Throws CollectiveError for what is no
/// death.
void settle(chorus::Communicator& world) {
  for (;;) {
    try {
      return world.barrier();
    } catch (const chorus::LossError&) {  // the others are as far in the next
    }
  }
}

}  // namespace

void share_state(chorus::Communicator& world, Trainer<float>& trainer, bool has) {
  std::vector<std::span<std::byte>> state;
  for (const auto& s : trainer.store().segments()) {
    for (float* const values : {s->own_values, s->moment1, s->moment2}) {
      state.push_back(std::as_writable_bytes(std::span(values, s->shard)));
    }
  }
  const Progress mine = trainer.progress();
  std::array<std::uint64_t, 3> counts{static_cast<std::uint64_t>(mine.steps), mine.sequences,
                                      mine.reductions};
  state.push_back(std::as_writable_bytes(std::span(counts)));
  (void)world.copy_state(state, has);
  if (has) return;
  trainer.resume_at({.steps = static_cast<int>(counts[0]),
                     .sequences = counts[1],
                     .loss_scale = 0,
                     .good_steps = 0,
                     .reductions = counts[2]});
}

int settle_place(chorus::Communicator& world, int replicas, int mine) {
  std::vector<int> places(static_cast<std::size_t>(world.world_size()));
  world.all_gather<int>(std::span<const int>(&mine, 1), places);
  int vacant = 0;
  for (std::size_t r = 0; r < places.size(); ++r) {
    if (places[r] >= 0) continue;
    while (vacant < replicas && std::ranges::find(places, vacant) != places.end()) ++vacant;
    places[r] = vacant;
  }
  return places[static_cast<std::size_t>(world.rank())];
}

void look_after(chorus::Communicator& world, Trainer<float>& trainer) {
  const int replicas = trainer.config().layout.dp;
  const int losses = world.losses().count;
  std::vector<int> waiting{0};
  if (world.rank() == 0 && world.world_size() < replicas) waiting[0] = num_waiting(world);
  world.all_reduce<int>(waiting, chorus::ReduceOp::max);
  const int step = trainer.steps_done();
  if (world.losses().count != losses && world.rank() == 0) {
    say(fmt::format("step {}: {}: {} of {} replicas go on", step, world.losses().why,
                    world.world_size(), replicas));
  }
  const int come = std::min(waiting[0], replicas - world.world_size());
  if (come < 1) return;
  try {
    world = world.take_in(come);
  } catch (const chorus::BootstrapError& error) {  // on all: it has died meanwhile, perhaps
    if (world.rank() == 0) say(fmt::format("step {}: nobody was taken in: {}", step, error.what()));
    return;
  }
  for (bool is_settled = false; !is_settled;) {
    try {
      (void)settle_place(world, replicas, trainer.groups().place.dp);
      trainer.agree([] {});  // as replicas do while they are made
      trainer.groups().renew(world, trainer.config().layout);
      share_state(world, trainer, true);
      is_settled = true;
    } catch (const chorus::CollectiveError&) {  // one that came has died again
      settle(world);
    } catch (const chorus::BootstrapError&) {
      settle(world);
    }
  }
  if (world.rank() == 0) {
    say(fmt::format("step {}: {} came: {} of {} replicas go on", step, come, world.world_size(),
                    replicas));
  }
}

}  // namespace trainer
