// `chorus synth`: the best schedules it can find for a topology, as a Plan.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/counted.hpp"
#include "base/files/draft.hpp"
#include "base/files/files.hpp"
#include "base/text/printable.hpp"
#include "base/text/progress.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/synth/synth_report.hpp"
#include "cli/this_host.hpp"
#include "formats/sketch_json.hpp"
#include "model/draw/timeline.hpp"
#include "model/json/json.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/options/options_env.hpp"
#include "synth/plan.hpp"
#include "synth/sketch.hpp"
#include "topology/discover/sources.hpp"
#include "topology/probing/declared_networks.hpp"

namespace chorus {
namespace {

constexpr int kMostRooted = 160;  // ranks of a wiring that repeats itself

struct SynthArguments {
  std::string topology, output, svg, cache, sketch;
  std::vector<std::string> collectives, only;
  std::vector<std::uint64_t> sizes;
  JobShape shape{.hosts = 1, .ranks_per_host = 0, .cores_per_host = 0};
  double time_limit_s = 0;  // 0: none
  double effort = 1;
  std::uint64_t seed = 1;
  bool json = false;
  bool fresh = false;
};

// Set by the first Ctrl-C, which asks for the best found so far; a second one ends the command.
std::atomic<bool> stop_asked = false;
void ask_to_stop(int) {
  stop_asked.store(true, std::memory_order_relaxed);
  std::signal(SIGINT, SIG_DFL);
}

/// A sketch and the text it was read from.
struct Sketched {
  Sketch sketch;
  std::string text;
};

std::optional<Sketched> sketch_of(const SynthArguments& arguments) {
  if (arguments.sketch.empty()) return std::nullopt;
  if (!arguments.only.empty()) {
    throw InputError("--sketch asks the sketched strategy alone: leave out --only");
  }
  Sketched result;
  result.text = read_input(arguments.sketch);
  result.sketch = formats::sketch_from_json(result.text, arguments.sketch);
  for (const std::string& ignored : result.sketch.ignored) {
    fmt::print(stderr, "chorus: {}: ignored: {}\n", arguments.sketch, ignored);
  }
  return result;
}

Topology topology_of(const SynthArguments& arguments, const std::optional<Sketched>& sketched) {
  if (!arguments.topology.empty() && arguments.shape.ranks_per_host == 0) {
    const int boxes = sketched ? std::max(1, sketched->sketch.hosts) : 1;
    return topology_from_argument(arguments.topology, boxes);
  }
  if (!arguments.topology.empty()) {
    throw InputError("a topology has its own ranks: give it or -n, not both");
  }
  if (arguments.shape.ranks_per_host == 0) return discover();
  return job_topology(on_this_host(arguments.shape, Options::from_env()));
}

std::vector<synth::Strategy> strategies_of(const SynthArguments& arguments) {
  if (arguments.only.empty()) return all_strategies();
  std::vector<synth::Strategy> chosen;
  for (const std::string& name : arguments.only) {
    // Several may go by one name: one that sends and one that reduces.
    for (synth::Strategy& strategy : all_strategies()) {
      if (strategy.name == name) chosen.push_back(std::move(strategy));
    }
  }
  return chosen;
}

/// Only the sketched strategy, and nothing that leaves the links it may use.
std::vector<synth::Strategy> sketched_alone(const SynthArguments& arguments,
                                            const Topology& topology, const Sketch& sketch,
                                            synth::PlanOptions& options) {
  const synth::Network network(topology);
  synth::require_connected(topology, network);
  try {
    options.accepts = [logical = synth::logical_network(network, sketch)](
                          const Schedule& schedule) { return !synth::strays(schedule, logical); };
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", arguments.sketch, error.what()));
  }
  if (arguments.sizes.empty() && sketch.size_bytes) options.sizes = {*sketch.size_bytes};
  return {synth::sketched_strategy(sketch)};
}

// What decides the result, as the name of a file.
std::filesystem::path cache_file(const SynthArguments& arguments, const Topology& topology,
                                 const synth::PlanOptions& options,
                                 const std::vector<synth::Strategy>& strategies,
                                 const std::optional<Sketched>& sketched) {
  const std::filesystem::path folder = arguments.cache.empty()
                                           ? std::filesystem::path(user_cache_directory())
                                           : std::filesystem::path(arguments.cache) / "chorus";
  if (folder.empty()) return {};
  std::string key = fmt::format("{} {} {}", CHORUS_VERSION, arguments.seed, arguments.effort);
  for (const CollectiveKind kind : options.kinds) key += fmt::format(" {}", name_of(kind));
  for (const std::uint64_t size : options.sizes) key += fmt::format(" {}", size);
  for (const synth::Strategy& strategy : strategies) key += " " + strategy.name;
  if (sketched) key += " " + sketched->text;
  return folder /
         fmt::format("{}-{:016x}.json", fingerprint(topology), std::hash<std::string>{}(key));
}

std::optional<Plan> cached(const std::filesystem::path& file, const Topology& topology) {
  std::error_code error;
  if (file.empty() || !std::filesystem::exists(file, error)) return std::nullopt;
  try {
    Plan plan = plan_from_json(read_input(file.string()), file.string());
    if (plan.topology_fingerprint == fingerprint(topology)) return plan;
  } catch (const InputError& unreadable) {
    fmt::print(stderr, "chorus: the cached plan is not used: {}\n", unreadable.what());
  }
  return std::nullopt;
}

void make_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (!error && !std::filesystem::is_directory(path, error)) {
    error = std::make_error_code(std::errc::not_a_directory);
  }
  if (error) throw InputError(fmt::format("{}: cannot be made: {}", path, error.message()));
}

void keep(const std::filesystem::path& file, const std::string& text) {
  if (file.empty()) return;
  try {
    make_folder(file.parent_path().string());
    remove_stale_drafts(file);
    write_file(file.string(), text);
  } catch (const std::exception& failed) {
    fmt::print(stderr, "chorus: the plan is not cached: {}\n", failed.what());
  }
}

synth::Planned make(const SynthArguments& arguments, const Topology& topology,
                    const synth::PlanOptions& given, const std::vector<synth::Strategy>& strategies,
                    const Limits& limits) {
  Progress progress(stderr, "chorus synth", Progress::Eta::none);
  synth::PlanOptions options = given;
  int done = 0, total = 1;
  std::string phase, best;
  options.progress = [&](int behind, int all) {
    done = behind;
    total = all;
  };
  options.better = [&](Collective collective, std::uint64_t size, const Schedule& schedule,
                       double seconds) {
    const double limit = limits.seconds(collective.kind, static_cast<double>(size));
    best =
        fmt::format("; {} of {}: '{}', {} of the limit", name_of(collective.kind), size_text(size),
                    printable_name(schedule.name), share_of_limit(limit, seconds));
    progress.show(done, total, phase + best);
  };
  options.effort = arguments.effort;
  options.limit = [&](Collective collective, double size) {
    return limits.seconds(collective.kind, size);
  };
  synth::Budget budget;
  if (arguments.time_limit_s > 0) {
    budget.deadline =
        synth::Budget::Clock::now() + std::chrono::duration_cast<synth::Budget::Clock::duration>(
                                          std::chrono::duration<double>(arguments.time_limit_s));
  }
  budget.stop = &stop_asked;
  budget.seed = arguments.seed;
  budget.report = [&](std::string_view what) {
    phase = what;
    progress.show(done, total, phase + best);
  };
  std::signal(SIGINT, ask_to_stop);
  synth::Planned planned = synth::make_plan(topology, options, strategies, budget);
  std::signal(SIGINT, SIG_DFL);
  return planned;
}

void draw(const SynthArguments& arguments, const Topology& topology, const Plan& plan) {
  const Routes routes(topology);
  for (const PlanEntry& entry : plan.entries) {
    const bool open = entry.max_bytes == std::numeric_limits<std::uint64_t>::max();
    const std::uint64_t size = open ? std::max<std::uint64_t>(entry.min_bytes, 1 << 20)
                                    : entry.min_bytes / 2 + entry.max_bytes / 2;
    const Simulation simulation =
        simulate(entry.schedule, topology, routes, static_cast<double>(size));
    const std::string file = fmt::format("{}/{}-{}.svg", arguments.svg,
                                         name_of(entry.schedule.collective.kind), size_text(size));
    write_file(file, timeline_svg(simulation, entry.schedule, topology, routes,
                                  static_cast<double>(size)));
  }
}

void run_synth(const SynthArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  const std::optional<Sketched> sketched = sketch_of(arguments);
  const Topology topology = topology_of(arguments, sketched);
  if (topology.world_size() < 2) {
    throw InputError(fmt::format("'{}' has {}: there is nothing to exchange; say how many with -n",
                                 printable_name(topology.name),
                                 counted(topology.world_size(), "rank")));
  }
  synth::PlanOptions options;
  if (arguments.collectives.empty() && topology.world_size() > kMostRooted &&
      synth::RepeatedNetwork::of(topology)) {
    // Whose schedules have no symmetry: to make them would take longer than all others together.
    std::erase_if(options.kinds, is_rooted);
  }
  if (!arguments.collectives.empty()) {
    options.kinds.clear();
    for (const std::string& name : arguments.collectives) {
      const CollectiveKind kind = parse_collective_kind(name);
      if (std::ranges::find(options.kinds, kind) == options.kinds.end()) {
        options.kinds.push_back(kind);
      }
    }
  }
  if (!arguments.sizes.empty()) {
    options.sizes = arguments.sizes;
    std::sort(options.sizes.begin(), options.sizes.end());
    options.sizes.erase(std::unique(options.sizes.begin(), options.sizes.end()),
                        options.sizes.end());
  }
  const std::vector<synth::Strategy> strategies =
      sketched ? sketched_alone(arguments, topology, sketched->sketch, options)
               : strategies_of(arguments);
  if (!arguments.output.empty()) require_writable(arguments.output);
  if (!arguments.svg.empty()) make_folder(arguments.svg);
  const std::filesystem::path file = cache_file(arguments, topology, options, strategies, sketched);
  std::optional<Plan> plan;
  if (!arguments.fresh) plan = cached(file, topology);
  const bool from_cache = plan.has_value();
  const Limits limits(topology, options.kinds);
  // A sketch names links of the topology itself.
  const Topology priced = sketched ? topology : probing::with_joined_networks(topology);
  bool complete = true, interrupted = false;
  if (!plan) {
    synth::Planned planned = make(arguments, priced, options, strategies, limits);
    complete = planned.complete;
    interrupted = planned.interrupted;
    plan = std::move(planned.plan);
    plan->topology = topology;
    plan->topology_fingerprint = fingerprint(topology);
  }
  const std::string text = to_json(*plan);
  if (!from_cache && !interrupted) keep(file, text);
  if (!arguments.output.empty()) write_output(arguments.output, text);
  if (!arguments.svg.empty()) draw(arguments, priced, *plan);
  const SynthReport report(priced, *plan, options.kinds, options.sizes, limits);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.output != "-") print(arguments.json ? report.json() : report.text());
  if (arguments.json) return;
  std::string end;
  if (interrupted) {
    end = "; stopped early: these are the best found so far";
  } else if (!complete) {
    end =
        fmt::format("; the best that so much effort finds (--effort {:g} tries for twice as long)",
                    2 * arguments.effort);
  }
  if (!arguments.output.empty() && arguments.output != "-") {
    end += fmt::format("; plan written to {}", arguments.output);
  }
  fmt::print(stderr, "{}{:.1f} s{}\n", from_cache ? "from the cache, " : "", seconds, end);
}

}  // namespace

void add_synth(CLI::App& app, int& exit_code) {
  auto arguments = std::make_shared<SynthArguments>();
  CLI::App* command = app.add_subcommand(
      "synth", "Synthesize proved schedules for a topology and write them as a plan");
  const std::vector<std::string> strategies = names_of(all_strategies());
  command->add_option("topology", arguments->topology, kTopologyHelp);
  command->add_option("-o,--output", arguments->output,
                      "plan file to write; - for standard output");
  command
      ->add_option(
          "-c,--collectives", arguments->collectives,
          fmt::format("default: all_reduce,all_gather,reduce_scatter,all_to_all,broadcast,"
                      "reduce; the last two up to {} ranks where the wiring repeats itself",
                      kMostRooted))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(collective());
  command
      ->add_option("-b,--bytes", arguments->sizes,
                   "sizes to optimise for; default: 1K,32K,1M,32M,1G")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(byte_size());
  command
      ->add_option("-n,--ranks-per-host", arguments->shape.ranks_per_host,
                   "instead of a topology: number of ranks, on hosts like this one")
      ->check(CLI::Range(1, 4096));
  command->add_option("--hosts", arguments->shape.hosts, "with -n")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--network", arguments->shape.network_gb_s, "with -n: GB/s per host")
      ->check(number_within(kLeastGbS, kMostGbS))
      ->capture_default_str();
  command
      ->add_option("--time-limit", arguments->time_limit_s,
                   "seconds; then the best found counts; default: none")
      ->check(number_within(kLeastSeconds, kMostSeconds));
  command
      ->add_option("--effort", arguments->effort,
                   "how long to try, on any machine to the same end: times what plans for as many "
                   "ranks are given, half a minute to 64 of them and a minute or two beyond")
      ->check(number_within(kLeastEffort, kMostEffort))
      ->capture_default_str();
  command
      ->add_option("--only", arguments->only,
                   fmt::format("strategies to ask: {}", fmt::join(strategies, ", ")))
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(one_of(strategies, "a strategy"));
  command
      ->add_option(
          "--sketch", arguments->sketch,
          "only what this sketch allows (docs/sketches.md), at its size unless -b is given")
      ->check(CLI::ExistingFile);
  command->add_option("--seed", arguments->seed, "of the searches that draw")
      ->check(whole_number())
      ->capture_default_str();
  command->add_option("--svg", arguments->svg, "folder for a picture of each schedule's timeline");
  command->add_option("--cache", arguments->cache,
                      "folder of the cache; default: $XDG_CACHE_HOME or ~/.cache");
  command->add_flag("--fresh", arguments->fresh, "synthesize even if the plan is cached");
  command->add_flag("--json", arguments->json, "the table as JSON");
  command->footer(
      "Ctrl-C ends the search with the best found so far.\n"
      "Example: chorus synth dgx1 -o dgx1.json && CHORUS_PLAN=dgx1.json chorus run -n 8 ./program");
  command->callback([arguments, &exit_code] {
    run_synth(*arguments);
    exit_code = 0;
  });
}

}  // namespace chorus
