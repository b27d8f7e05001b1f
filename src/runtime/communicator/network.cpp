// What a communicator knows of the network between its hosts, and which schedules follow from it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "model/json/json.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/flight_recorder.hpp"
#include "runtime/host/assumed_topology.hpp"
#include "runtime/host/probe_cache.hpp"
#include "runtime/probing/pacing.hpp"
#include "runtime/probing/probe.hpp"
#include "runtime/selection/network_division.hpp"
#include "runtime/selection/synthesize.hpp"
#include "topology/discover/sources.hpp"

namespace chorus {

// A part of a network that is known, or being probed, need not be probed again.
void Communicator::Impl::begin_survey(std::shared_ptr<Survey> known, bool use_cache) {
  const bool is_part = known != nullptr;
  if (!is_part) {
    const GroupPlace as{
        .key = fmt::format("{}/survey{}-{:x}", place.key, surveys++, connections->serial()),
        .members = place.members,
        .rank = place.rank};
    known = std::make_shared<Survey>(control, as, options, layout, *connections, use_cache);
    if (place.rank == 0 && known->recalled() != nullptr) drift.emplace(false);
  }
  engine->gate = known->recalled() == nullptr ? &known->gate() : nullptr;
  const std::lock_guard lock(survey_mutex);
  survey = std::move(known);
}

Communicator::Impl::Surveyed Communicator::Impl::surveyed(
    const probing::ProbedNetwork& network) const {
  const HostList hosts = hosts_of(*connections);
  const probing::ProbedNetwork mine =
      hosts.names == network.hosts ? network : probing::restricted(network, hosts.names);
  Surveyed found{.topology = probing::topology_of(mine, hosts.parts), .division = nullptr};
  if (!mine.further.empty()) {
    found.division = std::make_shared<const NetworkDivision>(mine, hosts.parts);
  }
  return found;
}

// Calls are chosen by what is known at once until this is done.
void Communicator::Impl::begin_planning(const Topology& topology) {
  begin_planning(fmt::format("plan{}", planners++), topology,
                 survey && survey->recalled() == nullptr ? survey : nullptr);
}

void Communicator::Impl::begin_planning(const std::string& key, const Topology& topology,
                                        std::shared_ptr<Survey> awaited) {
  const GroupPlace as{.key = fmt::format("{}/{}-{:x}", place.key, key, connections->serial()),
                      .members = place.members,
                      .rank = place.rank};
  planner = std::make_unique<Planner>(
      control, as,
      [this, as, network = Surveyed{topology, selector->division()}, found = std::move(awaited)](
          const std::stop_token& stop) { return make_plan(as, network, found, stop); });
}

// In the planner's thread: reads nothing that calls change.
Planned Communicator::Impl::make_plan(const GroupPlace& as, Surveyed network,
                                      const std::shared_ptr<Survey>& awaited,
                                      const std::stop_token& stop) const {
  if (awaited) {
    const Probed* const found = awaited->await(stop);
    if (found == nullptr) throw BootstrapError("the network between the hosts is not known");
    network = surveyed(found->network);
    share_cores(network.topology, connections->members());
  }
  Plan plan;
  if (options.synthesis_ms > 0) {
    plan = synthesize_together(*control, as, network.topology, options, stop);
  }
  return {.selector = make_selector(as, std::move(network), std::move(plan)), .survey = awaited};
}

void Communicator::Impl::end_planning() {
  planner.reset();
  engine->gate = nullptr;
  next_survey.reset();
}

void Communicator::Impl::follow_planner() {
  const bool due = planner->due(sequence + 1, [this] {
    keep_up(*connections);
    engine->check();
  });
  if (due) {
    adopt(planner->take());
  } else if (planner->state() != Planner::State::nothing) {
    if (engine->gate != nullptr) engine->gate->pass();
    return;
  } else if (next_survey && place.rank == 0) {
    drift.emplace(true, static_cast<int>(changes));  // perhaps it comes to something another time
  }
  end_planning();
}

void Communicator::Impl::adopt(Planned planned) {
  forget_calls();
  connections->pace(paces(planned.selector->topology(), place.rank));
  selector = std::move(planned.selector);
  if (planned.survey) {
    const std::lock_guard lock(survey_mutex);
    survey = planned.survey;
  }
  if (place.rank != 0) return;
  if (planned.survey) drift.emplace(true, static_cast<int>(changes));
  log(LogLevel::info, who(place), fmt::format("the plan begins with call {}", sequence + 1));
}

void Communicator::Impl::await_plan() {
  if (planners == 0) return;  // on all ranks alike
  static_cast<void>(exchange("await_plan", "await_plan()", {}));
  hear_of_change();  // what rank 0 has told before is here by now
  if (!planner) return;
  const auto state = planner->await([this] {
    keep_up(*connections);
    engine->check();
  });
  if (state == Planner::State::agreed) adopt(planner->take());
  end_planning();
}

// Only rank 0's cache counts, and what it sees shows enough.
void Communicator::Impl::note_time(const Job& job) {
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - job.begun;
  if (tells_calls) {
    log(LogLevel::debug, who(place),
        fmt::format("call {} {} took {:.2f} us, {:.2f} were predicted", job.sequence,
                    signature(job.call), taken.count() * 1e6, job.predicted_s * 1e6));
  }
  if (!job.drifts || job.predicted_s <= 0) return;
  const std::uint64_t bytes = size_bytes_of(job.call, static_cast<int>(place.members.size()));
  const Drift::Shape shape{.kind = static_cast<CollectiveKind>(job.call.kind),
                           .log2_bytes = static_cast<int>(std::bit_width(bytes))};
  const auto change = drift->note(shape, job.predicted_s, taken.count());
  if (!change) return;
  const Probed* const probed =
      survey->recalled() != nullptr ? survey->recalled() : survey->await({});
  forget_probe(options.probe_cache, probed->key);
  log(LogLevel::warn, who(place),
      fmt::format("{} takes {:.2g} times what {}: the network has changed. What was measured of it "
                  "is discarded; {}",
                  signature(job.call), *change,
                  probed->cached ? "an earlier probe promises" : "it did after probing",
                  options.replan ? "it is measured again beside the next calls"
                                 : "reprobe(), or the next job, measures it again"));
  if (options.replan) tell_change();
}

// Rank 0. The others hear of it in one of their next calls.
void Communicator::Impl::tell_change() {
  const std::uint32_t change = ++changes;
  for (Rank r = 1; r < static_cast<Rank>(place.members.size()); ++r) {
    control->note(place.key, r, std::as_bytes(std::span(&change, 1)));
  }
  replan(change);
}

void Communicator::Impl::hear_of_change() {
  if (!survey || !options.replan || planner) return;
  for (const Control::Note& note : control->take_notes(place.key)) {
    std::uint32_t change = 0;
    if (note.from != 0 || note.blob.size() != sizeof change) continue;
    std::memcpy(&change, note.blob.data(), sizeof change);
    end_planning();
    replan(change);
  }
}

// On each rank at some call of its own: nothing here waits for the others.
void Communicator::Impl::replan(std::uint32_t change) {
  const GroupPlace as{
      .key = fmt::format("{}/resurvey{}-{:x}", place.key, change, connections->serial()),
      .members = place.members,
      .rank = place.rank};
  const Probed* const before =
      survey->recalled() != nullptr ? survey->recalled() : survey->await({});
  next_survey = std::make_shared<Survey>(control, as, options, layout, *connections,
                                         before == nullptr ? "" : before->key);
  engine->gate = &next_survey->gate();
  begin_planning(fmt::format("replan{}", change), selector->topology(), next_survey);
}

namespace {

/// Without what memory was measured to take: on another day or machine the same ranks are wired
/// alike.
std::string fingerprint_of_wiring(Topology topology) {
  for (Topology::PortGroup& group : topology.port_groups) {
    const bool memory = std::ranges::all_of(group.links, [&](int link) {
      return topology.links[static_cast<std::size_t>(link)].type == "shm";
    });
    if (!memory) continue;
    group.beta_s_per_byte = 1;
    group.message_s = 0;
  }
  for (Topology::Link& link : topology.links) {
    if (link.type != "shm") continue;
    link.alpha_s = 0;
    link.beta_s_per_byte = 1;
    link.provenance = Provenance::table;
  }
  return fingerprint(topology);
}

}  // namespace

// On one host a plan may also be for what is found of this machine.
void Communicator::Impl::tell_plan(const Plan& plan, const Topology& found) const {
  const bool fits = plan.topology_fingerprint == fingerprint(found) ||
                    (!plan.topology.nodes.empty() &&
                     fingerprint_of_wiring(plan.topology) == fingerprint_of_wiring(found)) ||
                    (options.topology_file.empty() && num_hosts(connections->members()) == 1 &&
                     plan.topology_fingerprint == fingerprint(discover()));
  if (fits) {
    return log(LogLevel::info, who(place),
               fmt::format("{} is the plan, made for this wiring ({})", options.plan_file,
                           plan.topology_fingerprint));
  }
  log(LogLevel::warn, who(place),
      fmt::format("{} is a plan for another topology than is found here: {}; it is used all the "
                  "same: results are right, but it may be slow. Set CHORUS_TOPOLOGY to the file "
                  "that it was made for if that describes these ranks better",
                  options.plan_file, difference(plan.topology, found)));
}

void Communicator::Impl::tell_begin(const Job& job, const std::string& schedule,
                                    std::uint64_t size_bytes) {
  const auto kind = static_cast<CollectiveKind>(job.call.kind);
  log(LogLevel::debug, who(place),
      fmt::format("call {} {} of {} bytes runs {}: {}; predicted {:.2f} us", job.sequence,
                  signature(job.call), size_bytes, schedule,
                  schedule_name.empty() ? selector->why(kind, size_bytes) : "the caller names it",
                  job.predicted_s * 1e6));
}

bool Communicator::Impl::reprobe() {
  const bool any = std::ranges::any_of(all_jobs_, [](const auto& job) { return job->running; });
  const std::uint8_t busy = any || group_depth > 0 ? 1 : 0;
  const auto all = exchange("reprobe", "reprobe()", std::as_bytes(std::span(&busy, 1)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].size() != 1 || all[r][0] != std::byte{0}) {
      throw InputError(fmt::format(
          "rank {} cannot probe again: it has calls under way; wait for its requests first", r));
    }
  }
  if (!survey) return false;
  static_cast<void>(control->take_notes(place.key));  // what rank 0 began before ends here
  end_planning();
  begin_survey(nullptr, false);
  begin_planning(selector->topology());
  await_plan();
  return true;
}

void Communicator::Impl::choose_by(Surveyed network, Plan plan) {
  forget_calls();
  connections->pace(paces(network.topology, place.rank));
  selector = make_selector(place, std::move(network), std::move(plan));
}

std::unique_ptr<Selector> Communicator::Impl::make_selector(const GroupPlace& as, Surveyed network,
                                                            Plan plan) const {
  auto made = std::make_unique<Selector>(
      std::move(network.topology), levels_of(connections->members()), options, std::move(plan),
      place.rank, layout.guaranteed_slots(), shared_machine ? &*shared_machine : nullptr,
      std::move(network.division));
  if (place.members.size() < kCompactRanks) return made;
  const std::vector<std::byte> mine = place.rank == 0 ? made->decide() : std::vector<std::byte>();
  const Table all =
      control->exchange(as.key + "/schedules", as.members, mine, options.join_timeout_ms, as.key);
  made->follow(all[0]);
  return made;
}

void Communicator::Impl::use(const Plan& plan) {
  const std::string mine = fingerprint(plan);
  const auto all =
      exchange(fmt::format("plan{}", plans++), "use()", std::as_bytes(std::span(mine)));
  for (std::size_t r = 0; r < all.size(); ++r) {
    const std::string theirs(reinterpret_cast<const char*>(all[r].data()), all[r].size());
    if (theirs != mine) {
      throw BootstrapError(fmt::format("ranks {} and {} were given different plans: {} and {}",
                                       place.rank, r, mine, theirs));
    }
  }
  static_cast<void>(control->take_notes(place.key));
  end_planning();
  drift.reset();  // what it goes by now is somebody's choice
  choose_by({.topology = selector->topology(), .division = selector->division()}, plan);
}

}  // namespace chorus
