#include "perf/options.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "command/arguments.hpp"
#include "model/json/json.hpp"
#include "perf/cluster/command.hpp"
#include "perf/report/nccl_tests.hpp"

namespace chorus::perf {
namespace {

constexpr const char* kDescription =
    "Measures collectives through Chorus, Open MPI, MPICH, Gloo and NCCL with one loop, and checks "
    "every result.";

constexpr const char* kExamples = R"(
Examples:
  chorus-perf                                  all_reduce, 4 B to 256 MiB, 2 ranks, every library
  chorus-perf all_gather latency -n 4 -e 1M    two benchmarks on 4 ranks, up to 1 MiB
  chorus-perf all --transport shm,tcp --json r.json --svg r.svg
  chorus-perf all_gather --plan plan.json      a plan of chorus synth beside what runs without
  chorus-perf -t gpu -l chorus,nccl --format nccl-tests      on GPUs, in the columns of nccl-tests
  chorus-perf all_gather -n 4 --explain        every schedule that could run, predicted and measured
  chorus-perf --quick                          a minute, ends in one comparison table
  chorus-perf compare old.json new.json        ratios between two results
  chorus-perf show r.json --markdown           the tables of an earlier run
  mpirun --host a:8,b:8 chorus-perf all_reduce --json r.json      on the hosts of a job: of mpirun,
                                               srun or torchrun, one process per rank
  chorus-perf cluster show random:7            a cluster drawn by a seed: hosts, cables, bounds
  chorus-perf cluster check pairs              an emulated cluster and what its cables carry
  chorus-perf cluster run pairs -- ./program   a program on it, one process per rank

Sizes count the buffer for all_reduce, reduce, broadcast and messages, all blocks for the others.
Exit code: 0 well, 1 a result was wrong or Chorus failed, 2 bad arguments or files, 3 this process
may not emulate a cluster; that of the program for cluster run.
)";

constexpr const char* kClusterHelp =
    "homo, pairs, slow, islands, random:SEED, another name of chorus topo --list, or a file of "
    "Chorus JSON";

/// The arguments as text, before they are understood.
struct Raw {
  std::vector<std::string> benchmarks;
  std::vector<std::string> libraries;
  std::vector<std::string> workers;
  std::vector<std::string> transports = {"shm"};
  std::vector<std::string> clusters;
  std::string congestion;
  std::vector<std::string> traffic;
  bool undescribed = false, tuned = false, cluster_table = false, host = false;
  bool random_clusters = false;
  std::vector<std::uint64_t> sizes;
  std::string plan;
  std::string nccl;
  std::string begin = "4", end = "256M", type = "float32", op = "sum";
  double factor = 4;
  std::string format = "tables";
  bool quick = false, markdown = false, brief = false, explain = false;
  int job_ranks = 0;  ///< 0: not in a job of another launcher
};

template <class T>
T known(std::optional<T> value, const std::string& option, const std::string& text) {
  if (value) return *value;
  throw InputError(fmt::format("{}: \"{}\" is unknown; see chorus-perf --help", option, text));
}

std::vector<Kind> kinds_of(const std::vector<std::string>& names) {
  std::vector<Kind> kinds;
  const auto add = [&](Kind kind) {
    if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
  };
  for (const std::string& name : names) {
    if (name == "all") {
      for (const Benchmark& entry : benchmarks()) add(entry.kind);
    } else {
      add(known(kind_named(name), "BENCHMARK", name));
    }
  }
  return kinds;
}

/// Those that are meant where none is named: NCCL is no peer on host memory.
std::vector<Library> by_default(const Raw& raw, std::vector<Library> available) {
  const auto is_gpu = [](const std::string& transport) { return transport == "gpu"; };
  const bool some_gpu = std::any_of(raw.transports.begin(), raw.transports.end(), is_gpu);
  const bool all_gpu = std::all_of(raw.transports.begin(), raw.transports.end(), is_gpu);
  std::erase_if(available, [&](const Library& library) {
    return (library.name == "nccl" && !some_gpu) || (all_gpu && !why_not(library, "gpu").empty());
  });
  return available;
}

std::vector<Library> libraries_named(const Raw& raw, std::vector<Library> available, int ranks) {
  for (const std::string& worker : raw.workers) {
    const std::size_t equals = worker.find('=');
    if (equals == 0 || equals == worker.npos) {
      throw InputError(fmt::format("--worker {}: give NAME=PATH", worker));
    }
    available.push_back({worker.substr(0, equals), worker.substr(equals + 1)});
  }
  for (Library& library : available) {
    if (library.name == "nccl" && !raw.nccl.empty()) library.settings = {"--nccl", raw.nccl};
  }
  if (raw.libraries.empty()) return by_default(raw, std::move(available));
  // The variants, too, when they are called by their names.
  for (const auto& variants : {host_variants(available, ranks), tuned_variants(available)}) {
    available.insert(available.end(), variants.begin(), variants.end());
  }
  std::vector<Library> chosen;
  for (const std::string& name : raw.libraries) {
    const auto found = std::find_if(available.begin(), available.end(),
                                    [&](const Library& library) { return library.name == name; });
    if (found == available.end()) {
      throw InputError(fmt::format(
          "--library {}: there is no chorus-perf-worker-{} next to chorus-perf", name, name));
    }
    if (std::ranges::find(chosen, name, &Library::name) != chosen.end()) {
      throw InputError(fmt::format("--library {}: it is named twice", name));
    }
    chosen.push_back(*found);
  }
  return chosen;
}

void add_missing(std::vector<Library>& libraries, const std::vector<Library>& more) {
  for (const Library& one : more) {
    const bool there = std::any_of(libraries.begin(), libraries.end(),
                                   [&](const Library& known) { return known.name == one.name; });
    if (!there) libraries.push_back(one);
  }
}

/// Chorus once more, with a plan, beside what it chooses without.
void add_plan(const CLI::App& app, const Raw& raw, Settings& settings) {
  const Plan plan = plan_from_json(read_file(raw.plan), raw.plan);
  if (app.count("--ranks") == 0) settings.ranks = plan.world_size;
  if (settings.ranks != plan.world_size) {
    throw InputError(fmt::format("--plan {}: is for {} ranks, not {}: leave -n out", raw.plan,
                                 plan.world_size, settings.ranks));
  }
  const auto chorus = std::find_if(settings.libraries.begin(), settings.libraries.end(),
                                   [](const Library& library) { return library.name == "chorus"; });
  if (chorus == settings.libraries.end()) {
    throw InputError("--plan: plans are for Chorus: name chorus among the libraries");
  }
  const Library with_plan{"chorus-plan", chorus->worker,
                          std::filesystem::absolute(raw.plan).string()};
  settings.libraries.insert(chorus + 1, with_plan);
}

/// All benchmarks at a small, a middling and a large size, over both transports.
void make_quick(const CLI::App& app, Raw& raw, MeasureOptions& options) {
  if (app.count("benchmark") == 0) raw.benchmarks = {"all"};
  if (app.count("--transport") == 0) raw.transports = {"shm", "tcp"};
  if (app.count("--rounds") == 0) options.settings.rounds = 3;
  if (app.count("--budget-ms") == 0) options.settings.budget_ms = 25;
  if (app.count("--timeout-s") == 0) options.settings.timeout_s = 10;
  if (app.count("--begin") + app.count("--end") + app.count("--factor") == 0) {
    options.settings.sizes = {16, 64 << 10, 4 << 20};
  }
  options.details = false;
}

/// The comparison on emulated clusters, as far as the arguments do not say otherwise.
void make_cluster_table(const CLI::App& app, Raw& raw, MeasureOptions& options) {
  if (app.count("benchmark") == 0) {
    raw.benchmarks = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
  }
  if (raw.clusters.empty()) raw.clusters = {"homo", "pairs", "pairs@0,2,1,3", "slow", "islands"};
  if (raw.sizes.empty()) raw.sizes = {4, 64 << 10, 16 << 20, 64 << 20};
  if (app.count("--rounds") == 0) options.settings.rounds = 1;
  if (app.count("--timeout-s") == 0) options.settings.timeout_s = 120;
  raw.tuned = true;
}

/// What docs/benchmarks.md shows of clusters drawn at random.
void make_random_clusters(const CLI::App& app, Raw& raw, MeasureOptions& options) {
  if (app.count("benchmark") == 0) {
    raw.benchmarks = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"};
  }
  if (raw.clusters.empty()) raw.clusters = {"random:1..30"};
  if (raw.sizes.empty()) raw.sizes = {16 << 20};
  if (app.count("--rounds") == 0) options.settings.rounds = 1;
  if (app.count("--timeout-s") == 0) options.settings.timeout_s = 120;
  raw.undescribed = true;
  options.settings.cores = true;
}

/// "0,2,1,3"
std::vector<int> parse_order(const std::string& text) {
  std::vector<int> order;
  for (const char* at = text.data(); at != text.data() + text.size();) {
    int rank = 0;
    const auto [rest, error] = std::from_chars(at, text.data() + text.size(), rank);
    const bool ends = rest == text.data() + text.size();
    if (error != std::errc() || (!ends && (*rest != ',' || rest[1] == '\0'))) {
      throw InputError(fmt::format("--order {}: write the ranks as in 0,2,1,3", text));
    }
    order.push_back(rank);
    at = ends ? rest : rest + 1;
  }
  return order;
}

/// In a job of another launcher that one decides where ranks are.
void fit_into_job(const CLI::App& app, Raw& raw, Settings& settings) {
  for (const char* option :
       {"--cluster", "--cluster-table", "--random-clusters", "--host", "--explain"}) {
    if (app.count(option) == 0) continue;
    throw InputError(fmt::format(
        "{} is for one machine, and this is a job of {} processes: run it without the launcher",
        option, raw.job_ranks));
  }
  if (app.count("--ranks") > 0 && settings.ranks != raw.job_ranks) {
    throw InputError(fmt::format("-n {}: the launcher started {} processes: leave -n out",
                                 settings.ranks, raw.job_ranks));
  }
  settings.ranks = raw.job_ranks;
  if (app.count("--transport") == 0) raw.transports = {"auto"};
}

std::vector<Stream> streams_named(const std::vector<std::string>& names) {
  std::vector<Stream> streams;
  for (const std::string& name : names) streams.push_back(stream_named(name));
  return streams;
}

void add_clusters(const Raw& raw, Settings& settings) {
  for (const std::string& cluster : raw.clusters) {
    const std::size_t at = cluster.find('@');
    for (std::string& name : cluster_names(cluster.substr(0, at))) {
      ClusterPlace place;
      place.topology = std::move(name);
      place.described = !raw.undescribed;
      if (at != cluster.npos) place.order = parse_order(cluster.substr(at + 1));
      place.cables.congestion = raw.congestion;
      place.cables.traffic = streams_named(raw.traffic);
      settings.clusters.push_back(std::move(place));
    }
  }
}

void finish(const CLI::App& app, Raw& raw, const std::vector<Library>& available,
            MeasureOptions& options) {
  Settings& settings = options.settings;
  options.details = !raw.brief;
  if (raw.quick) make_quick(app, raw, options);
  if (raw.cluster_table) make_cluster_table(app, raw, options);
  if (raw.random_clusters) make_random_clusters(app, raw, options);
  if (raw.job_ranks > 0) fit_into_job(app, raw, settings);
  if (raw.benchmarks.empty()) raw.benchmarks = {"all_reduce"};
  settings.kinds = kinds_of(raw.benchmarks);
  settings.libraries = libraries_named(raw, available, settings.ranks);
  if (!raw.plan.empty()) add_plan(app, raw, settings);
  settings.transports = raw.transports;
  settings.type = known(type_named(raw.type), "--type", raw.type);
  settings.op = known(op_named(raw.op), "--op", raw.op);
  add_clusters(raw, settings);
  if (raw.tuned) add_missing(settings.libraries, tuned_variants(settings.libraries));
  if (raw.host) {
    add_missing(settings.libraries, host_variants(settings.libraries, settings.ranks));
  }
  for (const std::uint64_t size : raw.sizes) {
    settings.sizes.push_back(size);
    if (app.count("--sizes") > 0 && size % size_of(settings.type) != 0) {
      throw InputError(fmt::format("--sizes {}: no whole number of {} elements of {} bytes", size,
                                   name_of(settings.type), size_of(settings.type)));
    }
  }
  std::sort(settings.sizes.begin(), settings.sizes.end());
  if (settings.sizes.empty()) {
    settings.sizes = sizes_between(parse_size(raw.begin), parse_size(raw.end), raw.factor);
  }
  if (!options.svg.empty() && settings.sizes.size() < 2) {
    throw InputError("--svg: a curve needs at least two sizes (-b and -e, or --sizes)");
  }
  if (raw.markdown) options.style = Style::markdown;
  options.nccl_tests = raw.format == "nccl-tests";
  for (const Kind kind : settings.kinds) {
    if (!options.nccl_tests || has_nccl_tests_form(kind)) continue;
    throw InputError(
        fmt::format("--format nccl-tests: there is no such test as {}", benchmark(kind).name));
  }
}

ExplainOptions to_explain(const CLI::App& app, const Raw& raw, const MeasureOptions& options) {
  const Settings& settings = options.settings;
  if (!options.json.empty() && settings.transports.size() > 1) {
    throw InputError("--explain --json: name one transport; each has figures of its own");
  }
  ExplainOptions explain;
  explain.kinds = settings.kinds;
  explain.transports = settings.transports;
  explain.ranks = settings.ranks;
  explain.sizes = settings.sizes;
  explain.json = options.json;
  if (app.count("--budget-ms") > 0) explain.budget_ms = settings.budget_ms;
  if (!raw.plan.empty()) explain.plan = std::filesystem::absolute(raw.plan).string();
  return explain;
}

/// The words that may stand where a benchmark is named, and of subcommands where one is misspelt.
CLI::Validator benchmark_or_command(std::vector<std::string> names) {
  names.insert(names.end(), {"compare", "show", "cluster", "help"});
  return one_of(std::move(names), "a benchmark or command");
}

/// Ends a list of libraries where a benchmark follows.
CLI::Validator no_benchmark(const std::vector<std::string>& names) {
  return {[names](const std::string& word) {
            return std::ranges::find(names, word) == names.end() ? "" : word + " is a benchmark";
          },
          ""};
}

void add_measuring(CLI::App& app, Raw& raw, MeasureOptions& options) {
  Settings& s = options.settings;
  std::vector<std::string> names = {"all"};
  for (const Benchmark& entry : benchmarks()) names.emplace_back(entry.name);
  app.add_option("benchmark", raw.benchmarks,
                 fmt::format("What to measure: {}", fmt::join(names, ", ")))
      ->type_name("BENCHMARK")
      ->delimiter(',')
      ->check(benchmark_or_command(names))
      ->default_str("all_reduce");
  app.add_option("-l,--library", raw.libraries,
                 "Libraries to measure, the first is the baseline (default: all found)")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(no_benchmark(names));
  app.add_option("--plan", raw.plan,
                 "A plan of chorus synth: measured as one more library, chorus-plan");
  app.add_option("--nccl", raw.nccl,
                 "The libnccl.so.2 that library nccl loads (default: the system's)");
  app.add_flag("--host", raw.host,
               "Also Chorus with buffers of its own allocator, Open MPI over UCX and with han, and "
               "(2 ranks, all_reduce) the floor");
  app.add_option("--worker", raw.workers, "A further worker executable, NAME=PATH");
  app.add_option("-t,--transport", raw.transports,
                 "shm, tcp, rdma or gpu (buffers in GPU memory), or several of them")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(raw.job_ranks > 0 ? one_of({"auto", "shm", "tcp", "rdma", "gpu"}, "a transport")
                                : one_of({"shm", "tcp", "rdma", "gpu"}, "a transport"))
      ->capture_default_str();
  app.add_option(
         "--cluster", raw.clusters,
         "Measure on an emulated cluster, as root (docs/emulated-clusters.md): a topology, or "
         "TOPOLOGY@0,2,1,3 with the order of ranks, or random:1..30; may be repeated")
      ->expected(1)
      ->take_all()
      ->excludes("--transport")
      ->excludes("--plan");
  app.add_option("--congestion", raw.congestion, "Congestion control on the clusters' hosts")
      ->needs("--cluster");
  app.add_option("--traffic", raw.traffic,
                 "A stream of others on the clusters, at so many GB/s: host0>host2:0.02; may be "
                 "repeated; bounds do not count it")
      ->expected(1)
      ->take_all()
      ->needs("--cluster");
  app.add_flag("--undescribed", raw.undescribed, "Chorus is not told the cluster's topology")
      ->needs("--cluster");
  app.add_flag(
      "--tuned", raw.tuned,
      "Open MPI also with rings and with trees for all sizes (openmpi-ring, openmpi-tree)");
  app.add_flag(
         "--cluster-table", raw.cluster_table,
         "What docs/benchmarks.md shows: homo, pairs in two orders of ranks, slow and islands; "
         "four collectives at four sizes; --tuned; most of an hour")
      ->excludes("--transport")
      ->excludes("--plan");
  app.add_flag("--cores", s.cores,
               "Also what Chorus takes by cables four times as fast: where that is no less, "
               "cores are the limit")
      ->needs("--cluster");
  app.add_flag("--restart", s.restart, "Every round begins with a new start of each library");
  app.add_flag("--random-clusters", raw.random_clusters,
               "What docs/benchmarks.md shows of clusters drawn at random: random:1..30 unless "
               "--cluster names others, undescribed, four collectives of 16 MiB, --cores; 40 min")
      ->excludes("--transport")
      ->excludes("--plan")
      ->excludes("--cluster-table");
  app.add_option("--sizes", raw.sizes, "Just these sizes: 4,64K,16M")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(byte_size());
  app.add_option("-n,--ranks", s.ranks,
                 "Ranks, all on this machine; in a job of another launcher: its own")
      ->check(CLI::Range(2, 1024))
      ->capture_default_str();
  app.add_option("-b,--begin", raw.begin, "Smallest size, bytes (K, M, G)")
      ->transform(byte_size())
      ->capture_default_str();
  app.add_option("-e,--end", raw.end, "Largest size, bytes (K, M, G)")
      ->transform(byte_size())
      ->capture_default_str();
  app.add_option("-f,--factor", raw.factor, "From one size to the next")->capture_default_str();
  app.add_option("-d,--type", raw.type, "Element type")->capture_default_str();
  app.add_option("-o,--op", raw.op, "sum, prod, min, max, avg; band, bor or bxor")
      ->capture_default_str();
  app.add_option("-r,--root", s.root, "Root of the rooted collectives")->capture_default_str();
  app.add_flag("--in-place", s.in_place, "Input and output share memory");
  app.add_flag("--dirty", s.dirty, "Rewrite the input before every iteration, untimed");
  app.add_option("--offset", s.offset_bytes,
                 "Ordinary buffers begin so many bytes behind a page: large ones of malloc() 16")
      ->check(CLI::Range(0, 4095));
  app.add_option("--rounds", s.rounds, "Rounds over all libraries; medians of their medians")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("-i,--iterations", s.max_iterations,
                 "Most timed iterations of a block (default: by size, 30 to 2000)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("-w,--warmup", s.warmup,
                 "Fewest untimed iterations (default 2; more until a tenth of the budget)")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--budget-ms", s.budget_ms, "Time for the timed iterations of a block")
      ->check(CLI::Range(1, 3'600'000))
      ->capture_default_str();
  app.add_option("--window", s.window,
                 "Messages in flight for bandwidths (default: 64, fewer if large)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--timeout-s", s.timeout_s, "Longest wait for one block of one library")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  app.add_flag("--quick", raw.quick,
               "Every benchmark at three sizes over shm and tcp, in about a minute");
  app.add_flag("--brief", raw.brief, "Only the comparison");
  CLI::Option* const explain = app.add_flag(
      "--explain", raw.explain,
      "Instead: every schedule of Chorus that could run, predicted and measured, at sizes up to "
      "16M; "
      "on a cluster: chorus-perf cluster run TOPOLOGY -- chorus-perf-selection --explain");
  // It chooses what is measured, and how.
  for (const char* other : {"--library", "--nccl", "--host", "--worker", "--cluster", "--tuned",
                            "--cluster-table", "--random-clusters", "--quick"}) {
    explain->excludes(other);
  }
  for (const char* other : {"--restart", "--in-place", "--dirty", "--offset", "--type", "--op",
                            "--root", "--rounds", "--iterations", "--warmup", "--window"}) {
    explain->excludes(other);
  }
  CLI::Option* const json = app.add_option("--json", options.json,
                                           "Write the result to this file; - for standard output");
  app.add_flag("--continue", options.continued,
               "Keep the clusters that the file of --json already has, and measure the others")
      ->needs(json);
  CLI::Option* const svg =
      app.add_option("--svg", options.svg,
                     "Draw time and bandwidth against size (needs gnuplot); - for standard output");
  CLI::Option* const markdown = app.add_flag("--markdown", raw.markdown, "Tables in Markdown");
  app.add_option("--format", raw.format,
                 "tables, or nccl-tests: its lines and columns, out of place and in place")
      ->check(CLI::IsMember({"tables", "nccl-tests"}))
      ->capture_default_str()
      ->excludes(json)
      ->excludes(svg)
      ->excludes(markdown)
      ->excludes(explain)
      ->excludes("--in-place");
  explain->excludes(svg)->excludes(markdown)->excludes("--brief")->excludes("--continue");
}

CLI::Validator rank() {
  return {[](const std::string& word) {
            const bool digits = !word.empty() && std::ranges::all_of(word, [](unsigned char c) {
              return std::isdigit(c) != 0;
            });
            return digits && word.size() < 6 ? std::string()
                                             : "write the ranks as in 0,2,1,3, not " + word;
          },
          ""};
}

void add_cluster(CLI::App& app, ClusterOptions& options, std::string& launcher,
                 std::vector<std::string>& traffic) {
  CLI::App* cluster = app.add_subcommand(
      "cluster", "Emulate a cluster on this machine (network namespaces; as root)");
  cluster->require_subcommand(1);
  const auto name_one = [&](const char* name, const char* what, ClusterOptions::Action action) {
    CLI::App* command = cluster->add_subcommand(name, what);
    command->add_option("topology", options.topology, kClusterHelp)->required();
    command
        ->add_option("--order", options.order, "Rank r takes the place of rank ORDER[r]: 0,2,1,3")
        ->delimiter(',')
        ->allow_extra_args(false)
        ->check(rank());
    command->callback([&options, action] { options.action = action; });
    return command;
  };
  name_one("show", "What it is made of and what limits collectives on it; sets nothing up",
           ClusterOptions::Action::show)
      ->add_option("--json", options.json,
                   "Write its topology to this file, for chorus explain and chorus synth; - for "
                   "standard output");
  const auto add = [&](const char* name, const char* what, ClusterOptions::Action action) {
    CLI::App* command = name_one(name, what, action);
    command->add_option("--mtu", options.cables.mtu, "Of all cables")
        ->check(CLI::Range(576, 65535))
        ->capture_default_str();
    command->add_option("--congestion", options.cables.congestion,
                        "Congestion control of the hosts (default: this machine's)");
    command
        ->add_option("--traffic", traffic,
                     "A stream of others at so many GB/s, host0>host2:0.02 or by another cable "
                     "host0>host2/net1:0.02; may be repeated")
        ->expected(1)
        ->take_all();
    command->add_option("--queue", options.cables.queue_bytes, "Bytes queued in front of a cable")
        ->check(CLI::Range(1 << 16, 1 << 28))
        ->capture_default_str();
    return command;
  };
  add("check", "Set it up and measure what its cables carry", ClusterOptions::Action::check);
  add("hold", "Set it up and keep it until Ctrl-C, for commands by hand",
      ClusterOptions::Action::hold);
  CLI::App* run = add("run", "Set it up, run a program on it, one process per rank, tear it down",
                      ClusterOptions::Action::run);
  run->add_option("--launcher", launcher,
                  "ranks (torchrun's variables, for Chorus), openmpi or mpich")
      ->check(CLI::IsMember({"ranks", "openmpi", "mpich"}))
      ->capture_default_str();
  run->add_option("PROGRAM", options.program, "The program and its arguments")->required();
}

}  // namespace

CommandLine parse_options(int argc, const char* const* argv, const std::vector<Library>& available,
                          int job_ranks) {
  Raw raw;
  raw.job_ranks = job_ranks;
  MeasureOptions measure;
  CompareOptions compare;
  ShowOptions show;
  bool brief = false;

  CLI::App app(kDescription, "chorus-perf");
  app.footer(kExamples);
  add_measuring(app, raw, measure);
  CLI::App* compare_app = app.add_subcommand("compare", "Ratios between two results");
  compare_app->add_option("a", compare.a, "Result of an earlier run")->required();
  compare_app->add_option("b", compare.b, "Result of a later run")->required();
  compare_app->add_flag("--markdown", raw.markdown, "Tables in Markdown");
  compare_app->add_option("--fail-above", compare.fail_above,
                          "Exit 1 if the geometric mean of b/a is above this");
  CLI::App* show_app = app.add_subcommand("show", "Tables and plot of an earlier run");
  show_app->add_option("file", show.file, "Result of an earlier run")->required();
  show_app->add_option("benchmark", show.benchmarks, "Only these of its benchmarks")
      ->delimiter(',');
  show_app->add_option("--svg", show.svg, "Draw it (needs gnuplot); - for standard output");
  show_app->add_flag("--brief", brief, "Only the comparison");
  show_app->add_flag("--markdown", raw.markdown, "Tables in Markdown");
  ClusterOptions cluster;
  std::string launcher = "ranks";
  add_cluster(app, cluster, launcher, raw.traffic);
  add_common_options(app);
  app.require_subcommand(0, 1);

  try {
    if (auto leave = read_command_line(app, argc, argv)) return *std::move(leave);
    if (*compare_app) {
      compare.style = raw.markdown ? Style::markdown : Style::text;
      return compare;
    }
    if (*show_app) {
      show.style = raw.markdown ? Style::markdown : Style::text;
      show.details = !brief;
      return show;
    }
    if (app.got_subcommand("cluster")) {
      cluster.cables.traffic = streams_named(raw.traffic);
      if (launcher == "openmpi") cluster.launcher = ClusterOptions::Launcher::openmpi;
      if (launcher == "mpich") cluster.launcher = ClusterOptions::Launcher::mpich;
      return cluster;
    }
    if (raw.explain && app.count("--end") == 0) raw.end = "16M";
    finish(app, raw, available, measure);
    if (raw.explain) return to_explain(app, raw, measure);
    return measure;
  } catch (const InputError& error) {
    return Leave{fmt::format("chorus-perf: {}\n", error.what()), 2};
  }
}

}  // namespace chorus::perf
