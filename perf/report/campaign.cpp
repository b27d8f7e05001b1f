#include "perf/report/campaign.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>

#include "base/files/files.hpp"
#include "chorus/communicator.hpp"
#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "model/json/json.hpp"
#include "model/schedule/contract.hpp"
#include "perf/allocation/allocation.hpp"
#include "perf/cluster/command.hpp"
#include "perf/report/data.hpp"
#include "perf/report/statistics.hpp"
#include "perf/report/table.hpp"

namespace chorus::perf {
namespace {

constexpr int kMostFailures = 3;

/// Where libraries meet: a transport of this machine or an emulated cluster.
struct Place {
  std::string transport;  ///< "shm", "tcp", or the cluster's name
  int ranks = 0;
  const Cluster* cluster = nullptr;
  const Topology* topology = nullptr;  ///< the cluster's
  std::string topology_file = {};      ///< what Chorus is told of it
  Allocation* job = nullptr;           ///< hosts of another launcher
};

JobHosts hosts_of(const Allocation& job) {
  JobHosts hosts{.list = job.host_list(),
                 .ranks = job.world_size(),
                 .one_host = job.hosts().size() == 1,
                 .oversubscribed = hosts_share_a_machine()};
  for (const Allocation::Host& host : job.hosts()) {
    hosts.oversubscribed =
        hosts.oversubscribed || static_cast<int>(host.ranks.size()) > host.machine.cpus;
  }
  return hosts;
}

/// One library in one place: its session, as long as it lives.
class Runner {
 public:
  Runner(const Library& library, const Place& place, const Settings& settings,
         const Scratch& scratch)
      : library_(library),
        place_(place),
        settings_(settings),
        scratch_(scratch),
        reason_(place.job != nullptr
                    ? why_not_in_job(library, place.transport, hosts_of(*place.job))
                : place.cluster != nullptr ? why_not_on_cluster(library)
                                           : why_not(library, place.transport)),
        given_up_(!reason_.empty()) {}

  [[nodiscard]] const std::string& name() const { return library_.name; }
  /// Not empty: it failed, and this is why.
  [[nodiscard]] const std::string& reason() const { return reason_; }
  [[nodiscard]] bool given_up() const { return given_up_; }
  [[nodiscard]] const std::optional<Peer>& peer() const { return peer_; }

  /// The next block begins with a new start.
  void end_session() { session_.reset(); }

  /// One block, or nothing if it failed; then reason() says why.
  std::optional<std::vector<Sample>> run(const Job& job, LoadMeter& meter) {
    if (given_up_) return std::nullopt;
    reason_.clear();
    try {
      if (!session_) start();
      if (place_.job != nullptr) {
        place_.job->begin_load(session_->pids(), session_->processes());
        auto samples = session_->run(job, Session::Seconds(settings_.timeout_s));
        meter.add(place_.job->end_load());
        return samples;
      }
      meter.begin(session_->processes());
      auto samples = session_->run(job, Session::Seconds(settings_.timeout_s));
      meter.end();
      return samples;
    } catch (const Error& error) {
      session_.reset();
      reason_ = error.what();
      if (++failures_ == kMostFailures) {
        given_up_ = true;
        reason_ += " (given up after three failures)";
      }
      return std::nullopt;
    }
  }

 private:
  void start() {
    const std::string directory =
        fmt::format("{}/{}-{}-{}", scratch_.path(), library_.name,
                    place_.cluster != nullptr ? "cluster" : place_.transport, ++starts_);
    std::filesystem::create_directories(directory);
    if (place_.job != nullptr) {
      start_in_job(*place_.job, directory);
      return;
    }
    const Launch launch =
        place_.cluster != nullptr
            ? launch_on(*place_.cluster, library_, place_.topology_file, directory)
            : launch_for(library_, place_.transport, place_.ranks, directory);
    session_ = std::make_unique<Session>(launch, directory, place_.ranks,
                                         Session::Seconds(settings_.timeout_s));
    note_peer(launch.commands.front());
  }

  /// Its workers run beside the processes of the job, or where its own mpirun puts them on the same
  /// hosts.
  void start_in_job(Allocation& job, const std::string& directory) {
    JobLaunch launch = launch_in_job(library_, place_.transport, hosts_of(job));
    AcrossHosts across = job.session({});
    launch.command.hidden = variables_of_launchers();
    launch.command.environment.emplace_back(kTokenVariable, across.token);
    if (library_.name.starts_with("chorus")) {
      launch.command.environment.emplace_back(
          "CHORUS_ID", UniqueId::make(job.world_size(), across.address).text);
    }
    across.start = [&](const std::vector<std::string>& arguments) {
      Command command = launch.command;
      command.argv.insert(command.argv.end(), arguments.begin(), arguments.end());
      return launch.by_mpirun ? local_workers({command}) : job.start(command);
    };
    session_ = std::make_unique<Session>(across, directory, place_.ranks,
                                         Session::Seconds(settings_.timeout_s));
    note_peer(launch.command);
  }

  void note_peer(const Command& command) {
    peer_ = Peer{.name = library_.name,
                 .transport = place_.transport,
                 .version = session_->version(),
                 .command = described(command)};
  }

  static std::string without_folder(const std::string& word) {
    return word.starts_with("/") ? std::filesystem::path(word).filename().string() : word;
  }

  /// The launcher's command line and variables, with the names of files cut to what matters.
  [[nodiscard]] std::string described(const Command& command) const {
    std::string text;
    for (const auto& [key, value] : command.environment) {
      constexpr std::array kOfOneRun = {"TMPDIR", "CHORUS_SECRET", "CHORUS_ID", kTokenVariable,
                                        kHostsVariable};
      if (std::ranges::find(kOfOneRun, key) == kOfOneRun.end())
        text += fmt::format("{}={} ", key, without_folder(value));
    }
    for (const std::string& word : command.argv) text += without_folder(word) + ' ';
    text.pop_back();
    return text;
  }

  Library library_;
  const Place& place_;
  const Settings& settings_;
  const Scratch& scratch_;
  std::unique_ptr<Session> session_;
  std::optional<Peer> peer_;
  std::string reason_;
  bool given_up_;
  int failures_ = 0;
  int starts_ = 0;
};

/// A row as its rounds come in.
struct Collected {
  Row row;
  LoadMeter meter;
  std::vector<double> p50, p99, fastest;
};

Job job_for(const Settings& s, const Place& place, Kind kind, std::uint64_t bytes,
            std::uint32_t seed) {
  Job job{.kind = kind,
          .type = s.type,
          .op = s.op,
          .root = s.root,
          .count = block_count(kind, bytes, s.type, place.ranks),
          .in_place = s.in_place,
          .dirty = s.dirty,
          .offset_bytes = s.offset_bytes,
          .seed = seed};
  job.max_iterations = s.max_iterations != 0       ? s.max_iterations
                       : bytes <= 8 * 1024         ? 2000
                       : bytes <= 256 * 1024       ? 500
                       : bytes <= 16 * 1024 * 1024 ? 100
                                                   : 30;
  // On slow cables one takes seconds, and all take the same.
  const bool slow = place.cluster != nullptr && bytes > 1024 * 1024 && s.max_iterations == 0;
  if (slow) job.max_iterations = 3;
  job.min_iterations = std::min(5, job.max_iterations);
  job.warmup = s.warmup != 0 ? s.warmup : slow ? 1 : 2;
  job.budget_us = std::int64_t{s.budget_ms} * 1000;
  job.window = s.window != 0 ? s.window : window_messages(bytes);
  if (kind == Kind::bandwidth || kind == Kind::bibandwidth) {
    // An iteration is a window of messages.
    job.max_iterations = std::max(job.min_iterations, job.max_iterations / 8);
  }
  return job;
}

/// What one iteration of the loop must be divided by to be one message one way.
double messages_per_iteration(const Job& job) {
  if (job.kind == Kind::latency) return 2;
  if (job.kind == Kind::bandwidth || job.kind == Kind::bibandwidth) return job.window;
  return 1;
}

void add_round(Collected& collected, const Job& job, const std::vector<Sample>& samples) {
  Row& row = collected.row;
  std::vector<std::vector<std::int64_t>> times;
  for (const Sample& sample : samples) {
    if (!sample.refused.empty()) row.reason = sample.refused;
    if (!sample.note.empty()) row.note = sample.note;
    if (row.wrong == 0 && sample.wrong != 0) row.first_wrong = sample.first_wrong;
    row.wrong += sample.wrong;
    times.push_back(sample.times_ns);
  }
  std::vector<double> us = slowest(times);
  if (us.empty()) return;
  row.iterations += us.size();
  for (double& value : us) value /= 1000 * messages_per_iteration(job);
  collected.p50.push_back(percentile(us, 0.50));
  collected.p99.push_back(percentile(us, 0.99));
  collected.fastest.push_back(*std::min_element(us.begin(), us.end()));
}

Row finish(Collected& collected, Kind kind, int ranks) {
  Row& row = collected.row;
  const Load load = collected.meter.load();
  row.idle_share = load.idle;
  row.others_share = load.others;
  if (collected.p50.empty()) return row;
  row.p50_us = median(collected.p50);
  row.p99_us = median(collected.p99);
  row.min_us = *std::min_element(collected.fastest.begin(), collected.fastest.end());
  row.p50_us_by_round = collected.p50;
  const double both_ways = kind == Kind::bibandwidth ? 2 : 1;
  row.algbw = both_ways * static_cast<double>(row.bytes) / (*row.p50_us * 1e3);
  row.busbw = row.algbw * bus_factor(kind, ranks);
  return row;
}

Row empty_row(const Settings& s, const Place& place, Kind kind, std::uint64_t bytes,
              const std::string& library) {
  const Benchmark& entry = benchmark(kind);
  Row row;
  row.collective = entry.name;
  row.transport = place.transport;
  row.library = library;
  row.ranks = entry.point_to_point ? 2 : place.ranks;
  row.bytes = bytes;
  row.count = block_count(kind, bytes, s.type, place.ranks);
  row.type = name_of(s.type);
  row.op = entry.reduces ? name_of(s.op) : "";
  if (place.topology != nullptr && !entry.point_to_point && kind != Kind::barrier) {
    const CollectiveKind collective = parse_collective_kind(entry.name);
    const Bound bound = lower_bound(*place.topology, {.kind = collective, .root = s.root});
    row.bound_us = 1e6 * bound.seconds_per_byte * static_cast<double>(bytes);
  }
  return row;
}

void check(const Settings& s, int ranks) {
  if (s.libraries.empty()) {
    throw InputError("no library to measure was found next to chorus-perf; build its workers");
  }
  if (ranks < 2) throw InputError("at least two ranks are needed; use --ranks 2 or more");
  if (s.root < 0 || s.root >= ranks) {
    throw InputError(fmt::format("--root {} is not a rank of {}", s.root, ranks));
  }
  for (const Kind kind : s.kinds) {
    if (!benchmark(kind).reduces) continue;
    const std::string why = why_uncheckable(
        {.type = s.type, .op = s.op, .reduced = true, .world_size = ranks, .seed = 0});
    if (!why.empty()) throw InputError(why);
  }
}

}  // namespace

std::vector<std::uint64_t> sizes_between(std::uint64_t begin, std::uint64_t end, double factor) {
  if (begin == 0 || begin > end) {
    throw InputError(
        fmt::format("there are no sizes from {} to {}; use 0 < --begin <= --end", begin, end));
  }
  if (!(factor > 1)) throw InputError("--factor must be greater than 1");
  std::vector<std::uint64_t> sizes;
  for (auto size = static_cast<double>(begin); size <= static_cast<double>(end); size *= factor) {
    const auto whole = static_cast<std::uint64_t>(std::llround(size));
    if (sizes.empty() || whole > sizes.back()) sizes.push_back(whole);
  }
  return sizes;
}

std::string ClusterPlace::name() const {
  const std::string last = std::filesystem::path(topology).filename().string();
  return order.empty() ? last : fmt::format("{} {}", last, fmt::join(order, ","));
}

std::vector<std::uint64_t> real_sizes(const Settings& settings, Kind kind, int ranks) {
  std::vector<std::uint64_t> sizes;
  for (const std::uint64_t wanted : settings.sizes) {
    const std::size_t count = block_count(kind, wanted, settings.type, ranks);
    const std::uint64_t size = size_bytes(kind, count, settings.type, ranks);
    if (sizes.empty() || size > sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

namespace {

/// Measures everything in one place, and adds it to `report`.
void measure_in(const Place& place, const Settings& settings, const Scratch& scratch,
                const std::function<void(const Step&)>& progress, Step& step, Report& report) {
  std::vector<Runner> runners;
  runners.reserve(settings.libraries.size());
  for (const Library& library : settings.libraries) {
    runners.emplace_back(library, place, settings, scratch);
  }
  auto seed = static_cast<std::uint32_t>(report.rows.size()) * 100'000 + 1;
  for (const Kind kind : settings.kinds) {
    for (const std::uint64_t bytes : real_sizes(settings, kind, place.ranks)) {
      std::vector<Collected> collected(runners.size());
      for (std::size_t i = 0; i < runners.size(); ++i) {
        collected[i].row = empty_row(settings, place, kind, bytes, runners[i].name());
      }
      for (int round = 0; round < settings.rounds; ++round) {
        const Job job = job_for(settings, place, kind, bytes, seed += 1000);
        for (std::size_t turn = 0; turn < runners.size(); ++turn) {
          const std::size_t i = (turn + static_cast<std::size_t>(round)) % runners.size();
          step.what = fmt::format("{} {} {} {}, round {}", benchmark(kind).name, place.transport,
                                  human_bytes(bytes), runners[i].name(), round + 1);
          progress(step);
          ++step.done;
          Collected& c = collected[i];
          if (!c.row.reason.empty()) continue;  // it failed or refused in an earlier round
          if (settings.restart) runners[i].end_session();
          if (const auto samples = runners[i].run(job, c.meter)) {
            add_round(c, job, *samples);
          } else {
            c.row.reason = runners[i].reason();
          }
        }
      }
      for (Collected& c : collected) report.rows.push_back(finish(c, kind, place.ranks));
    }
  }
  for (const Runner& runner : runners) {
    if (runner.peer()) report.peers.push_back(*runner.peer());
  }
}

int steps_of(const Settings& settings, int ranks) {
  int steps = 0;
  for (const Kind kind : settings.kinds) {
    steps += static_cast<int>(real_sizes(settings, kind, ranks).size() * settings.libraries.size());
  }
  return steps * settings.rounds;
}

/// Row::faster_us of the rows of `place` from `first` on: the same hosts and switches, by faster
/// cables. Not by cables without token buckets: packets that wait for no bucket are merged into few
/// large ones, and the cores have far less to do than with those of the cluster.
void measure_by_faster_cables(const Place& place, const Fabric& fabric, CableOptions cables,
                              const Settings& settings, const Scratch& scratch,
                              const std::function<void(const Step&)>& progress, Step& step,
                              Report& report, std::size_t first) {
  cables.speed = kFasterCables;
  const Cluster cluster(fabric, cables);
  const Place faster{
      .transport = fmt::format("{} by cables {} times as fast", place.transport, kFasterCables),
      .ranks = place.ranks,
      .cluster = &cluster};
  Settings once = settings;
  once.rounds = 1;
  // Calls are short there, and the first ones run beside the probe of the network.
  if (once.warmup == 0) once.warmup = 5;
  if (once.max_iterations == 0) once.max_iterations = 10;
  std::erase_if(once.libraries, [](const Library& library) { return library.name != "chorus"; });
  Report rows;
  const int done = step.done;
  measure_in(faster, once, scratch, progress, step, rows);
  step.done = done;
  for (std::size_t i = first; i < report.rows.size(); ++i) {
    Row& row = report.rows[i];
    for (const Row& sooner : rows.rows) {
      if (row.library != sooner.library || sooner.collective != row.collective ||
          sooner.bytes != row.bytes) {
        continue;
      }
      row.faster_us = sooner.p50_us.value_or(0);
    }
  }
}

/// True if `report` has all rows of `place`. If not, those that it has are taken out of it.
bool is_measured(const std::string& place, const Settings& settings, int ranks, Report& report) {
  const auto has = [&](Kind kind, std::uint64_t bytes, const std::string& library) {
    return std::ranges::any_of(report.rows, [&](const Row& row) {
      return row.transport == place && row.collective == benchmark(kind).name &&
             row.bytes == bytes && row.library == library;
    });
  };
  bool all = true;
  for (const Kind kind : settings.kinds) {
    for (const std::uint64_t bytes : real_sizes(settings, kind, ranks)) {
      for (const Library& library : settings.libraries) {
        all = all && has(kind, bytes, library.name);
      }
    }
  }
  if (all) return true;
  std::erase_if(report.rows, [&](const Row& row) { return row.transport == place; });
  std::erase_if(report.peers, [&](const Peer& peer) { return peer.transport == place; });
  return false;
}

/// `settings.clusters` as they will stand, one after another.
std::vector<Topology> topologies_of(const Settings& settings) {
  std::vector<Topology> topologies;
  for (const ClusterPlace& cluster : settings.clusters) {
    topologies.push_back(cluster_topology(cluster.topology, cluster.order));
    (void)cluster_fabric(cluster.topology, cluster.order);  // refuse before anything is measured
  }
  return topologies;
}

}  // namespace

std::string why_not_continue(const Report& before, const Settings& settings,
                             const std::string& commit) {
  if (before.commit != commit) {
    return fmt::format("it was measured at commit {} and this program is of {}", before.commit,
                       commit);
  }
  const Machine machine = this_machine();
  if (before.machine.cpu != machine.cpu || before.machine.cpus != machine.cpus) {
    return fmt::format("it was measured on {} CPUs of {}", before.machine.cpus, before.machine.cpu);
  }
  if (before.rounds != settings.rounds || before.in_place != settings.in_place ||
      before.dirty != settings.dirty || before.offset_bytes != settings.offset_bytes) {
    return "it has other --rounds, --in-place, --dirty or --offset";
  }
  return {};
}

namespace {

Report begun(const Settings& settings, Allocation* job, const Report& before) {
  Report report;
  report.machine = this_machine();
  report.date = utc_now();
  report.rounds = settings.rounds;
  report.in_place = settings.in_place;
  report.dirty = settings.dirty;
  report.offset_bytes = settings.offset_bytes;
  if (job != nullptr) {
    report.launcher = job->launcher();
    report.hosts = report_hosts(*job);
    report.absent = absent_from(settings.libraries);
  }
  report.rows = before.rows;
  report.peers = before.peers;
  if (!before.date.empty()) report.date = before.date;
  return report;
}

/// One of `settings.clusters`, whose topology is `topology`.
void measure_on(const ClusterPlace& wanted, const Topology& topology, const Settings& settings,
                const std::function<void(const Step&)>& progress, Step& step, Report& report) {
  const Scratch scratch;
  const Fabric fabric = cluster_fabric(wanted.topology, wanted.order);
  Place place{.transport = wanted.name(), .ranks = topology.world_size(), .topology = &topology};
  if (wanted.described) {
    place.topology_file = scratch.path() + "/topology.json";
    write_file(place.topology_file, to_json(topology));
  }
  const std::size_t first = report.rows.size();
  {
    const Cluster cluster(fabric, wanted.cables);
    place.cluster = &cluster;
    measure_in(place, settings, scratch, progress, step, report);
  }
  if (settings.cores) {
    measure_by_faster_cables(place, fabric, wanted.cables, settings, scratch, progress, step,
                             report, first);
  }
}

}  // namespace

Report measure_all(const Settings& settings, const std::function<void(const Step&)>& progress,
                   Allocation* job, const Continued& continued) {
  const std::vector<Topology> topologies = topologies_of(settings);
  Report report = begun(settings, job, continued.before);
  Step step;
  for (const Topology& topology : topologies) {
    check(settings, topology.world_size());
    step.total += steps_of(settings, topology.world_size());
  }
  if (topologies.empty()) {
    check(settings, settings.ranks);
    step.total = steps_of(settings, settings.ranks) * static_cast<int>(settings.transports.size());
  }
  for (std::size_t i = 0; i < topologies.size(); ++i) {
    const ClusterPlace& wanted = settings.clusters[i];
    const int ranks = topologies[i].world_size();
    if (is_measured(wanted.name(), settings, ranks, report)) {
      step.done += steps_of(settings, ranks);
      continue;
    }
    measure_on(wanted, topologies[i], settings, progress, step, report);
    continued.save(report);
  }
  if (topologies.empty()) {
    const Scratch scratch;
    for (const std::string& transport : settings.transports) {
      const Place place{.transport = transport, .ranks = settings.ranks, .job = job};
      measure_in(place, settings, scratch, progress, step, report);
    }
  }
  step.what = "done";
  progress(step);
  return report;
}

}  // namespace chorus::perf
