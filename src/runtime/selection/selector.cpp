// The routines of the schedules that calls on host memory take.
#include <algorithm>
#include <utility>

#include "collectives/algorithms.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/executors/direct_execution.hpp"
#include "runtime/selection/network_division.hpp"
#include "runtime/selection/proved.hpp"
#include "runtime/selection/selection.hpp"

namespace chorus {

Selector::Selector(Topology topology, std::vector<int> levels, const Options& options, Plan plan,
                   Rank rank, int guaranteed_slots, const SharedMachine* shared,
                   std::shared_ptr<const NetworkDivision> division)
    : Selection(std::move(topology), std::move(levels), options, std::move(plan),
                {.shared = shared, .amend = {}, .tells = rank == 0}),
      rank_(rank),
      guaranteed_slots_(guaranteed_slots),
      division_(std::move(division)) {}

const Selector::Choice& Selector::choose(Collective collective, std::uint64_t size_bytes) {
  const std::size_t i = entry_for(collective.kind, size_bytes);
  const auto& entries = considered(collective.kind).entries;
  const Rank root = is_rooted(collective.kind) ? collective.root : 0;
  auto& by_root = choices_[static_cast<std::size_t>(collective.kind)];
  if (by_root.empty()) {
    by_root.assign(
        is_rooted(collective.kind) ? static_cast<std::size_t>(topology().world_size()) : 1,
        std::vector<Choice>(entries.size()));
  }
  Choice& choice = by_root[static_cast<std::size_t>(root)][i];
  if (!choice.routine) choice = make_choice(entries[i].schedule, root);
  return choice;
}

const Selector::Choice& Selector::choose(Collective collective, std::string_view name) {
  const Rank root = is_rooted(collective.kind) ? collective.root : 0;
  const auto key = std::tuple(collective.kind, root, std::string(name));
  if (const auto found = named_.find(key); found != named_.end()) return found->second;
  return named_.emplace(key, make_choice(named(collective.kind, name), root)).first->second;
}

Selector::Choice Selector::make_choice(const Schedule& schedule, Rank root) const {
  const Schedule mine = root == 0 ? schedule : rotated(schedule, root);
  if (mine.world_size >= kCompactRanks) return make_choice_alone(mine);
  Proved proved = prove(mine, guaranteed_slots_, pricing().shared != nullptr);
  std::vector<Program>& programs = proved.programs;
  MessageLengths lengths{.shortest_mean = mine.num_chunks};
  for (const Program& each : programs) {
    lengths.longest = std::max(lengths.longest, max_message_chunks(each));
    lengths.shortest_mean = std::min(lengths.shortest_mean, shortest_mean_message_chunks(each));
  }
  std::shared_ptr<const DirectRoutine> shared;
  if (proved.direct) {
    shared = std::make_shared<const DirectRoutine>(
        make_direct_routine(*proved.direct, rank_, pricing().shared->places));
  }
  Program& program = programs[static_cast<std::size_t>(rank_)];
  std::vector<std::shared_ptr<const NetworkShares>> shares;
  if (division_) {
    std::vector<Rank> peers;
    for (const Port& port : program.outgoing) peers.push_back(port.peer);
    shares = division_->shares(mine, rank_, peers);
  }
  return {.routine = make_routine(std::move(program), lengths, hash_of(mine), std::move(shared),
                                  std::move(shares)),
          .name = mine.name};
}

// In time and memory that grow with what this rank does: programs that ranks lower alone fit
// together, and cannot wait in a circle (lower_alone()). So links divide what they carry as they
// see fit.
Selector::Choice Selector::make_choice_alone(const Schedule& schedule) const {
  require_correct(schedule);
  std::shared_ptr<const DirectRoutine> shared;
  if (pricing().shared != nullptr) {
    if (const auto forms = proved_direct(schedule)) {
      shared = std::make_shared<const DirectRoutine>(
          make_direct_routine(*forms, rank_, pricing().shared->places));
    }
  }
  LoweredAlone alone = lower_alone(schedule, rank_);
  return {.routine = make_routine(std::move(alone.program), {.longest = alone.longest_message},
                                  hash_of(schedule), std::move(shared)),
          .name = schedule.name};
}

}  // namespace chorus
