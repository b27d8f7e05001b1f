// What a communicator knows of the network between its hosts, and which schedules follow from it.
#include <fmt/format.h>

#include <algorithm>

#include "base/log.hpp"
#include "chorus/error.hpp"
#include "collectives/algorithms.hpp"
#include "model/json.hpp"
#include "runtime/assumed_topology.hpp"
#include "runtime/communicator_impl.hpp"
#include "runtime/flight_recorder.hpp"
#include "runtime/pacing.hpp"
#include "runtime/probe.hpp"
#include "runtime/probe_cache.hpp"
#include "runtime/synthesize.hpp"
#include "topology/sources.hpp"

namespace chorus {

// A part of a network that is known, or being probed, need not be probed again.
void Communicator::Impl::begin_survey(std::shared_ptr<Survey> known, bool use_cache) {
  const bool is_part = known != nullptr;
  if (!is_part) {
    const GroupPlace as{
        .key = fmt::format("{}/survey{}-{:x}", place.key, surveys++, wiring->serial()),
        .members = place.members,
        .rank = place.rank};
    known = std::make_shared<Survey>(control, as, options, layout, *wiring, use_cache);
    if (place.rank == 0 && known->recalled() != nullptr) drift.emplace(false);
  }
  engine->gate = known->recalled() == nullptr ? &known->gate() : nullptr;
  const std::lock_guard lock(survey_mutex);
  survey = std::move(known);
}

Topology Communicator::Impl::surveyed(const Probed& network) const {
  const HostList hosts = hosts_of(*wiring);
  if (hosts.names == network.network.hosts) {
    return probing::topology_of(network.network, hosts.parts);
  }
  return probing::topology_of(probing::restricted(network.network, hosts.names), hosts.parts);
}

// Calls are chosen by what is known at once until this is done.
void Communicator::Impl::begin_planning(const Topology& topology) {
  const GroupPlace as{.key = fmt::format("{}/plan{}-{:x}", place.key, planners++, wiring->serial()),
                      .members = place.members,
                      .rank = place.rank};
  const bool probed = survey && survey->recalled() == nullptr;
  planner = std::make_unique<Planner>(control, as,
                                      [this, as, topology, probed](const std::stop_token& stop) {
                                        return make_plan(as, topology, probed, stop);
                                      });
}

// In the planner's thread: reads nothing that calls change.
Planned Communicator::Impl::make_plan(const GroupPlace& as, Topology topology, bool was_probed,
                                      const std::stop_token& stop) const {
  if (was_probed) {
    const Probed* const found = survey->await(stop);
    if (found == nullptr) throw BootstrapError("the network between the hosts is not known");
    topology = surveyed(*found);
    share_cores(topology, wiring->members());
  }
  Plan plan;
  if (options.synthesis_ms > 0) {
    plan = synthesize_together(*control, as, topology, options, stop);
  }
  return {.selector = make_selector(as, std::move(topology), std::move(plan)),
          .probed = was_probed};
}

void Communicator::Impl::end_planning() {
  planner.reset();
  engine->gate = nullptr;
}

void Communicator::Impl::follow_planner() {
  const bool due = planner->due(sequence + 1, [this] {
    keep_up(*wiring);
    engine->check();
  });
  if (due) {
    adopt(planner->take());
  } else if (planner->state() != Planner::State::nothing) {
    if (engine->gate != nullptr) engine->gate->pass();
    return;
  }
  end_planning();
}

void Communicator::Impl::adopt(Planned planned) {
  forget_calls();
  wiring->pace(paces(planned.selector->topology(), place.rank));
  selector = std::move(planned.selector);
  if (place.rank != 0) return;
  if (planned.probed) drift.emplace(true);
  log(LogLevel::info, who(place), fmt::format("the plan begins with call {}", sequence + 1));
}

void Communicator::Impl::await_plan() {
  if (planners == 0) return;  // on all ranks alike
  static_cast<void>(exchange("await_plan", "await_plan()", {}));
  if (!planner) return;
  const auto state = planner->await([this] {
    keep_up(*wiring);
    engine->check();
  });
  if (state == Planner::State::agreed) adopt(planner->take());
  end_planning();
}

// Only rank 0's cache counts, and collectives that end together on all ranks show it enough.
void Communicator::Impl::note_time(const Job& job) {
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - job.begun;
  if (tells_calls) {
    log(LogLevel::debug, who(place),
        fmt::format("call {} {} took {:.2f} us, {:.2f} were predicted", job.sequence,
                    signature(job.call), taken.count() * 1e6, job.predicted_s * 1e6));
  }
  if (!job.drifts || job.predicted_s <= 0) return;
  const auto change = drift->note(job.predicted_s, taken.count());
  if (!change) return;
  const Probed* const probed =
      survey->recalled() != nullptr ? survey->recalled() : survey->await({});
  forget_probe(options.probe_cache, probed->key);
  log(LogLevel::warn, who(place),
      fmt::format("{} takes {:.2g} times what {}: the network has changed. What was measured of it "
                  "is discarded; reprobe(), or the next job, measures it again",
                  signature(job.call), *change,
                  probed->cached ? "an earlier probe promises" : "it did after probing"));
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
                    (options.topology_file.empty() && num_hosts(wiring->members()) == 1 &&
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
  end_planning();
  begin_survey(nullptr, false);
  begin_planning(selector->topology());
  await_plan();
  return true;
}

void Communicator::Impl::choose_by(Topology topology, Plan plan) {
  forget_calls();
  wiring->pace(paces(topology, place.rank));
  selector = make_selector(place, std::move(topology), std::move(plan));
}

std::unique_ptr<Selector> Communicator::Impl::make_selector(const GroupPlace& as, Topology topology,
                                                            Plan plan) const {
  auto made = std::make_unique<Selector>(std::move(topology), levels_of(wiring->members()), options,
                                         std::move(plan), place.rank, layout.guaranteed_slots(),
                                         shared_machine ? &*shared_machine : nullptr);
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
  end_planning();
  choose_by(selector->topology(), plan);
}

}  // namespace chorus
