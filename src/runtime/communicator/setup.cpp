// How a communicator comes to be: files that options name, links, the network, the schedules.
#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>

#include "base/counted.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "collectives/reduce.hpp"
#include "model/json/json.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/host/assumed_topology.hpp"
#include "runtime/host/host_facts.hpp"
#include "runtime/host/option_file.hpp"
#include "runtime/launch/launch.hpp"
#include "runtime/options/options_env.hpp"
#include "runtime/probing/declared.hpp"
#include "transports/tcp/endpoint.hpp"

namespace chorus {
namespace {

// Instances of a program over links with a network in between: one instance's messages travel while
// another's are folded.
constexpr int kNetworkInstances = 2;
// Channels a lowered schedule may use: one for reductions, one for copies.
constexpr int kProgramChannels = 2;
constexpr int kMessageChannel = kNetworkInstances * kProgramChannels;

/// Between hosts data and credits wait in queues of the network, both ways at once, so more has to
/// be under way than inside a host: with 8 slots an all-reduce of 16 MB over two trunks of 200 Mb/s
/// reached 51 % of them, with 32 it reached 93 %. A job whose ranks meet on loopback is on one
/// host.
int slots_for(const Control& control, const Options& options) {
  constexpr int kNetworkSlots = 32;
  const std::string address = control.local_address();
  const bool one_host = address.starts_with("127.") || address == "::1";
  const bool chosen = options.slots != Options{}.slots;
  return one_host || chosen ? options.slots : kNetworkSlots;
}

/// Collectives of fewer that nobody waits for take a microsecond or two, and not the time of
/// another look at the clock.
constexpr std::size_t kBriefElements = 1024;

/// The topology that Options::topology_file describes; empty if it names none.
Topology described_topology(const Options& options, std::size_t num_ranks) {
  if (options.topology_file.empty()) return {};
  Topology described = topology_from_json(
      read_option_file(options.topology_file, "CHORUS_TOPOLOGY", "chorus topo SOURCE --json"),
      options.topology_file);
  if (described.world_size() != static_cast<int>(num_ranks)) {
    throw InputError(fmt::format("{} describes {}, but this communicator has {}",
                                 options.topology_file, counted(described.world_size(), "rank"),
                                 num_ranks));
  }
  return described;
}

/// The plan of Options::plan_file; empty if it names none.
Plan given_plan(const Options& options, std::size_t num_ranks, const Topology& described) {
  if (options.plan_file.empty()) return {};
  Plan plan = plan_from_json(
      read_option_file(options.plan_file, "CHORUS_PLAN", "chorus synth TOPOLOGY -o FILE"),
      options.plan_file);
  if (plan.world_size != static_cast<int>(num_ranks)) {
    throw InputError(fmt::format("{} is a plan for {}, but this communicator has {}",
                                 options.plan_file, counted(plan.world_size, "rank"), num_ranks));
  }
  if (!options.topology_file.empty() && fingerprint(described) != plan.topology_fingerprint) {
    throw InputError(fmt::format(
        "{} is a plan for another topology than {} describes: {}; make it again: chorus synth {}",
        options.plan_file, options.topology_file, difference(plan.topology, described),
        options.topology_file));
  }
  return plan;
}

}  // namespace

int message_channel() { return kMessageChannel; }

Options without_files(Options options) {
  options.topology_file.clear();
  options.plan_file.clear();
  return options;
}

Communicator::Impl::Impl(std::shared_ptr<void> guard, std::shared_ptr<Control> joined,
                         GroupPlace position, const Options& settings,
                         std::shared_ptr<Survey> known)
    : keep_alive(std::move(guard)),
      control(std::move(joined)),
      options(settings),
      place(std::move(position)),
      detours(settings.on_loss == "error" ? 0 : 1),
      survives(settings.on_loss != "error"),
      finishes(settings.on_loss == "finish") {
  set_log_level(parse_log_level(options.log_level));
  tells_calls = log_enabled(LogLevel::debug);
  layout = {.data_channels = kMessageChannel + 1,
            .slots = slots_for(*control, options),
            .slot_bytes = options.slot_bytes};
  Topology described = described_topology(options, place.members.size());
  Plan plan = given_plan(options, place.members.size(), described);
  control->open_group(place.key, place.members);
  connect(described, plan);
  engine = std::make_unique<Engine>(*control, *connections, place, options, layout);
  listen_to_engine();
  choose_first(std::move(described), std::move(plan), std::move(known));
  point_to_point_.resize(2 * place.members.size());
}

// Ranks that differ in what they were told are found here.
void Communicator::Impl::connect(const Topology& described, const Plan& plan) {
  const std::string agreement = fmt::format(
      "version {}, topology {}, plan {}, algorithm '{}', deterministic {}, slots {} of {} bytes, "
      "transports {}, synthesis {} ms, probing {} ms{}{}{}",
      CHORUS_VERSION, options.topology_file.empty() ? "discovered" : fingerprint(described),
      options.plan_file.empty() ? "none" : fingerprint(plan), options.algorithm,
      options.deterministic, layout.slots, options.slot_bytes, options.transports,
      options.synthesis_ms, options.probe_ms, options.await_plan ? ", plan awaited" : "",
      options.replan ? "" : ", no plan anew", survives ? ", on loss " + options.on_loss : "");
  try {
    connections = std::make_unique<Connections>(*control, place, options, layout, agreement);
  } catch (const LinkError& error) {
    // Of its own sockets or memory the others know nothing.
    if (error.peer() < 0) control->abort(place.key, error.what());
    // The peer may have died, or left because another died: that is the cause.
    if (const auto verdict = control->await_verdict(place.key)) throw CollectiveError(*verdict);
    throw;
  } catch (const TopologyError&) {
    // The others throw it, too, and leave: that they do is no cause.
    if (const auto death = control->await_death(place.key)) throw CollectiveError(*death);
    throw;
  }
}

void Communicator::Impl::choose_first(Topology described, Plan plan,
                                      std::shared_ptr<Survey> known) {
  const auto& members = connections->members();
  const std::size_t hosts = num_hosts(members);
  if (connections->any_network()) instances = kNetworkInstances;
  if (log_enabled(LogLevel::info) && place.rank == 0) {
    log(LogLevel::info, who(place),
        fmt::format("{} {} on {} {}, transports {}, {} reductions", members.size(),
                    members.size() == 1 ? "rank" : "ranks", hosts, hosts == 1 ? "host" : "hosts",
                    options.transports, reduce_instruction_set()));
  }
  // Else nothing goes from one rank of a machine to another.
  const bool shared = std::ranges::any_of(members, [&](const Member& member) {
    return &members[static_cast<std::size_t>(member.neighbor)] != &member;
  });
  if (shared) {
    learn_machines();
    if (connections->hosts_share_memory()) use_machine();
  }
  const bool free_to_choose = options.algorithm.empty() && !options.deterministic;
  const bool planned = !options.plan_file.empty();
  Surveyed network;
  if (planned || !options.topology_file.empty()) {
    network = described_network(std::move(described), plan);
  } else {
    if (hosts > 1 && free_to_choose && options.probe_ms > 0) begin_survey(std::move(known), true);
    if (survey && survey->recalled() != nullptr) {
      network = surveyed(survey->recalled()->network);
    } else {
      network.topology = assumed_topology(members, connections->hosts_share_memory());
    }
  }
  share_cores(network.topology, members);
  const Topology topology = network.topology;
  choose_by(std::move(network), std::move(plan));
  if ((survey || !options.topology_file.empty()) && !planned && members.size() > 1) {
    const bool to_be_probed = survey && survey->recalled() == nullptr;
    if (free_to_choose && (options.synthesis_ms > 0 || to_be_probed)) {
      begin_planning(topology);
      if (options.await_plan) await_plan();
    } else if (place.rank == 0) {
      log(LogLevel::info, who(place),
          fmt::format("no plan is synthesized: {} is set",
                      !options.algorithm.empty() ? "CHORUS_ALGORITHM"
                      : options.deterministic    ? "CHORUS_DETERMINISTIC"
                                                 : "CHORUS_SYNTHESIS_MS=0"));
    }
  }
}

// By CHORUS_TOPOLOGY, or by what the plan was made for.
Communicator::Impl::Surveyed Communicator::Impl::described_network(Topology described,
                                                                   const Plan& plan) const {
  const auto& members = connections->members();
  const bool planned = !options.plan_file.empty();
  if (options.topology_file.empty()) {
    described = assumed_topology(members, connections->hosts_share_memory());
  }
  const Topology& declared = planned ? plan.topology : described;
  std::optional<probing::ProbedNetwork> networks;
  if (num_hosts(members) > 1) {
    networks =
        declared_network(*control, place, options, *connections, hosts_of(*connections), declared);
  }
  if (planned && place.rank == 0) tell_plan(plan, networks ? declared : described);
  if (networks) return surveyed(*networks);
  return {.topology = std::move(described), .division = nullptr};
}

// As the first rank of each machine and host knows it: all choose by the same figures.
void Communicator::Impl::learn_machines() {
  const auto said = control->exchange(
      place.key + "/machines", place.members,
      machine_facts(connections->members(), place.rank, control->local_address(), options),
      options.join_timeout_ms);
  std::vector<std::span<const std::byte>> each;
  for (std::size_t r = 0; r < said.size(); ++r) each.emplace_back(said[r]);
  learn(connections->members(), each);
}

// Within this rank's machine: what copies of messages take, and what calls cost.
void Communicator::Impl::use_machine() {
  const auto& members = connections->members();
  const Member& own = members[static_cast<std::size_t>(place.rank)];
  const auto ranks = std::ranges::count(members, own.host, &Member::host);
  if (ranks < 2) return;
  SharedMachine machine{.cores = own.host_cores,
                        .rates = *own.rates,
                        .places = {},
                        .slot_bytes = static_cast<double>(layout.slot_bytes)};
  for (const Member& member : members) {
    if (member.host == own.host) machine.places.push_back(member.place);
  }
  if (connections->shared_window() != nullptr) {
    shared_machine = machine;
    shared_calls_.machine = &*shared_machine;
    MessageCopiesBySize copies = message_copies(machine);
    // Of those a tuner decides, call by call.
    for (MessageCopies& of_size : copies.of) of_size.kernel_s = MessageCopies::kNever;
    shared_calls_.ways = PutWays(copies);
  }
  connections->expect_copies(message_copies(machine));
  // Where Yama lets nobody but its ancestors look into a process (ptrace_scope 1), those that the
  // same launcher started may; elsewhere the call is refused and not needed.
  if (machine.rates.kernel_copies()) ::prctl(PR_SET_PTRACER, ::getppid(), 0, 0, 0);
}

void Communicator::Impl::listen_to_engine() {
  flight_job = control->job();
  engine->on_report = [this] { report_history(); };
  engine->on_complete = [this](const Job& job) {
    const bool brief = !engine->waited() && job.call.count < kBriefElements;
    if (brief) {
      flight.finish_brief(job.flight_record);
    } else if (job.way != Job::Way::eager_ring) {
      flight.finish(job.flight_record);
    }
    if (job.timed) note_time(job);
  };
  engine->on_failure = [this](const std::string& failure, const std::string& waiting) {
    if (options.flight_dir.empty()) return;
    const std::string path =
        flight.dump(options.flight_dir, {.job = flight_job,
                                         .communicator = place.key,
                                         .rank = place.rank,
                                         .world_size = static_cast<int>(place.members.size()),
                                         .failure = failure,
                                         .waiting = waiting});
    if (!path.empty()) log(LogLevel::warn, who(place), "flight record: " + path);
  };
}

namespace {

/// Those that tcp listens on: a coordinator in this process does, too.
Control::OwnAddresses addresses_of_tcp(const Options& options) {
  return [names = options.interface_name](const std::string& local_address) {
    std::vector<std::string> addresses;
    try {
      for (const Rail& rail : resolve_rails(names.empty() ? local_address : names, names.empty())) {
        addresses.push_back(rail.address.ip_text());
      }
    } catch (const Error&) {  // names that mean nothing here: tcp says so
      addresses.clear();
    }
    return addresses;
  };
}

}  // namespace

std::unique_ptr<Communicator::Impl> Communicator::Impl::join(const Options& options) {
  require_valid(options);
  const Launch launch = Launch::from_env();
  std::shared_ptr<void> keep_alive;
  const std::string id = resolve_id(launch, options, keep_alive);
  return join(id, launch.rank, launch.world_size, std::move(keep_alive), options);
}

std::unique_ptr<Communicator::Impl> Communicator::Impl::join(const std::string& id, Rank rank,
                                                             int world_size,
                                                             std::shared_ptr<void> keep_alive,
                                                             const Options& options,
                                                             const InVain& is_in_vain) {
  require_valid(options);
  auto control = Control::join(id, rank, world_size, options.join_timeout_ms,
                               {.warn_after_ms = options.warn_after_ms,
                                .most_direct = 0,
                                .rejoin = options.rejoin,
                                .own_addresses = addresses_of_tcp(options),
                                .is_in_vain = is_in_vain});
  GroupPlace place{.key = "world", .rank = control->rank()};
  for (Rank r = 0; r < control->world_size(); ++r) place.members.push_back(r);
  // Files that describe the world as it was started do not describe the one that it has become.
  const Options own = control->was_taken_in() ? without_files(options) : options;
  try {
    auto joined = std::make_unique<Impl>(std::move(keep_alive), control, std::move(place), own);
    joined->met_at = id;
    joined->joined_probe_ms = own.probe_ms;
    return joined;
  } catch (const InputError& error) {  // a file of this rank's, of which the others know nothing
    control->leaves_because(error.what());
    throw;
  }
}

std::unique_ptr<Communicator::Impl> Communicator::Impl::part(GroupPlace members,
                                                             int timeout_ms) const {
  Options smaller = without_files(options);  // they describe the whole world, not a part of it
  if (timeout_ms > 0) smaller.timeout_ms = timeout_ms;
  members.wakeups = connections->wakeups();
  std::shared_ptr<Survey> known;
  {
    const std::lock_guard lock(survey_mutex);
    known = survey;
  }
  // What this one does not know its parts do not look for.
  if (!known) smaller.probe_ms = 0;
  auto made =
      std::make_unique<Impl>(keep_alive, control, std::move(members), smaller, std::move(known));
  made->met_at = met_at;
  made->joined_probe_ms = joined_probe_ms;
  return made;
}

}  // namespace chorus
