// Collectives of ranks that share one GPU, beside what the GPU can do at all, measured in the same
// run: the bandwidth of its own copy, an empty launch, one flag there and back. JSON on stdout.
// Ranks are threads. Every size is checked once before it is timed.
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "chorus/error.hpp"
#include "device/driver/driver.hpp"
#include "device/kernels.hpp"
#include "model/schedule/contract.hpp"
#include "runtime/control/control.hpp"
#include "runtime/gpu/communicator.hpp"

namespace chorus {
namespace {

using cuda::check;

const cuda::Api& api() { return cuda::driver(); }

struct Settings {
  std::size_t largest = std::size_t{1} << 30;
  int most_ranks = 8;
  int repeats = 5;
};

class Timer {
 public:
  Timer() {
    check(api().event_create(&begin_, 0), "event");
    check(api().event_create(&end_, 0), "event");
  }
  ~Timer() {
    api().event_destroy(begin_);
    api().event_destroy(end_);
  }
  void start(cuda::StreamHandle stream) { check(api().event_record(begin_, stream), "event"); }
  void stop(cuda::StreamHandle stream) { check(api().event_record(end_, stream), "event"); }
  double seconds() {
    check(api().event_synchronize(end_), "event");
    float ms = 0;
    check(api().event_elapsed(&ms, begin_, end_), "event");
    return ms * 1e-3;
  }

 private:
  cuda::EventHandle begin_ = nullptr;
  cuda::EventHandle end_ = nullptr;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// What the GPU can do at all.
struct Floors {
  double copy_bytes_per_s = 0;  ///< read and written
  double launch_s = 0;          ///< from one empty kernel to the next, enqueued one by one
  double graph_launch_s = 0;    ///< the same inside a graph
  double round_trip_s = 0;      ///< a flag there and back between two resident blocks
};

Floors measure_floors(const Settings& settings) {
  Floors floors;
  const cuda::Stream stream = cuda::make_stream();
  Timer timer;
  {
    const std::size_t bytes = settings.largest;
    const cuda::Memory from = cuda::allocate(bytes);
    const cuda::Memory to = cuda::allocate(bytes);
    std::vector<double> rates;
    for (int i = 0; i < settings.repeats + 2; ++i) {
      timer.start(stream.get());
      for (int j = 0; j < 4; ++j) {
        check(api().copy(to.get(), from.get(), bytes, stream.get()), "copy");
      }
      timer.stop(stream.get());
      const double seconds = timer.seconds();
      if (i >= 2) rates.push_back(8.0 * static_cast<double>(bytes) / seconds);
    }
    floors.copy_bytes_per_s = median(rates);
  }
  cuda::Module module = nullptr;
  check(api().module_load(&module, device::kernel_image().data()), "loading kernels");
  const cuda::LoadedModule loaded(module);
  cuda::Function ping = nullptr;
  check(api().module_function(&ping, module, "chorus_ping"), "chorus_ping");
  const cuda::Memory flags = cuda::allocate(256);
  const auto run = [&](std::uint32_t rounds, cuda::StreamHandle on) {
    std::uint64_t address = flags.get();
    void* parameters[] = {&address, &rounds};
    check(api().launch(ping, 2, 1, 1, 32, 1, 1, 0, on, parameters, nullptr), "ping");
  };
  constexpr int kLaunches = 1000;
  constexpr std::uint32_t kRounds = 10'000;
  std::vector<double> launches, graphs, trips;
  cuda::Graph graph = nullptr;
  check(api().capture_begin(stream.get(), cuda::kCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kLaunches; ++i) run(0, stream.get());
  check(api().capture_end(stream.get(), &graph), "capture");
  cuda::GraphExec exec = nullptr;
  check(api().graph_instantiate(&exec, graph, 0), "graph");
  for (int i = 0; i < settings.repeats + 2; ++i) {
    timer.start(stream.get());
    for (int j = 0; j < kLaunches; ++j) run(0, stream.get());
    timer.stop(stream.get());
    launches.push_back(timer.seconds() / kLaunches);
    timer.start(stream.get());
    check(api().graph_launch(exec, stream.get()), "graph");
    timer.stop(stream.get());
    graphs.push_back(timer.seconds() / kLaunches);
    check(api().set_bytes(flags.get(), 0, 256, stream.get()), "clear");
    timer.start(stream.get());
    run(kRounds, stream.get());
    timer.stop(stream.get());
    trips.push_back(timer.seconds() / kRounds);
  }
  api().graph_exec_destroy(exec);
  api().graph_destroy(graph);
  floors.launch_s = median(launches);
  floors.graph_launch_s = median(graphs);
  floors.round_trip_s = median(trips);
  return floors;
}

/// Bytes that all ranks together must read and write for a call on `bytes` (as nccl-tests counts:
/// the larger buffer of a rank).
double bytes_moved(Call::Kind kind, std::size_t bytes, int ranks) {
  const auto n = static_cast<double>(ranks);
  const auto size = static_cast<double>(bytes);
  switch (kind) {
    case Call::Kind::all_gather:  // each input is read once, each output written
    case Call::Kind::reduce_scatter:
      return n * size + size;
    default:
      return 2 * n * size;
  }
}

double bus_factor(Call::Kind kind, int ranks) {
  const double n = ranks;
  if (kind == Call::Kind::all_reduce) return 2 * (n - 1) / n;
  if (kind == Call::Kind::broadcast || kind == Call::Kind::reduce) return 1;
  return (n - 1) / n;
}

struct Row {
  Call::Kind kind;
  int ranks;
  std::size_t bytes;
  bool graph;
  double seconds;
  bool right;
};

/// One rank of a measured world.
class Bench {
 public:
  Bench(Communicator& comm, const Settings& settings, std::barrier<>& together)
      : comm_(comm),
        settings_(settings),
        together_(together),
        context_(0),
        current_(context_.get()),
        stream_(cuda::make_stream()),
        device_(comm, 0),
        input_(cuda::allocate(settings.largest)),
        output_(cuda::allocate(settings.largest)) {}

  void run(Call::Kind kind, std::size_t bytes, bool graph, std::vector<Row>& rows) {
    const auto n = static_cast<std::size_t>(comm_.world_size());
    const bool blocks = num_blocks(static_cast<CollectiveKind>(kind), comm_.world_size()) > 1;
    const std::size_t count = bytes / sizeof(float) / (blocks ? n : 1);
    if (count == 0) return;
    // CUDA's addresses are numbers. NOLINTBEGIN(performance-no-int-to-ptr)
    const Call call{.kind = kind,
                    .input = reinterpret_cast<const void*>(input_.get()),
                    .output = reinterpret_cast<void*>(output_.get()),
                    // NOLINTEND(performance-no-int-to-ptr)
                    .count = count,
                    .type = DataType::float32};
    const bool right = check_once(call, bytes);
    const int calls = bytes <= (1U << 20) ? 50 : bytes <= (64U << 20) ? 10 : 4;
    cuda::GraphExec exec = graph ? capture(call, calls) : nullptr;
    std::vector<double> times;
    Timer timer;
    for (int i = 0; i < settings_.repeats + 2; ++i) {
      together_.arrive_and_wait();
      timer.start(stream_.get());
      if (exec != nullptr) {
        check(api().graph_launch(exec, stream_.get()), "graph");
      } else {
        for (int j = 0; j < calls; ++j) enqueue(call);
      }
      timer.stop(stream_.get());
      times.push_back(timer.seconds() / calls);
    }
    if (exec != nullptr) api().graph_exec_destroy(exec);
    together_.arrive_and_wait();
    rows.push_back({kind, comm_.world_size(), bytes, graph, median(times), right});
  }

 private:
  void enqueue(const Call& call) { device_.enqueue({.call = call, .stream = stream_.get()}); }

  cuda::GraphExec capture(const Call& call, int calls) {
    cuda::Graph graph = nullptr;
    cuda::GraphExec exec = nullptr;
    check(api().capture_begin(stream_.get(), cuda::kCaptureModeThreadLocal), "capture");
    for (int i = 0; i < calls; ++i) enqueue(call);
    check(api().capture_end(stream_.get(), &graph), "capture");
    check(api().graph_instantiate(&exec, graph, 0), "graph");
    api().graph_destroy(graph);
    return exec;
  }

  // Rank r's element i is r + 1 + i mod 7; every sum is exact.
  static float element(Rank rank, std::size_t i) {
    return static_cast<float>(rank + 1) + static_cast<float>(i % 7);
  }
  bool check_once(const Call& call, std::size_t bytes) {
    const auto n = comm_.world_size();
    const Rank me = comm_.rank();
    const bool gathers = call.kind == Call::Kind::all_gather;
    const bool scatters = call.kind == Call::Kind::reduce_scatter;
    const std::size_t elements = bytes / sizeof(float);
    std::vector<float> data(elements);
    for (std::size_t i = 0; i < elements; ++i) data[i] = element(me, i);
    check(api().copy_to_device(input_.get(), data.data(), bytes, stream_.get()), "copy");
    check(api().set_bytes(output_.get(), 0xff, bytes, stream_.get()), "poison");
    enqueue(call);
    check(api().copy_to_host(data.data(), output_.get(), bytes, stream_.get()), "copy");
    check(api().stream_synchronize(stream_.get()), "wait");
    const std::size_t wanted = scatters ? call.count
                               : call.kind == Call::Kind::all_reduce
                                   ? call.count
                                   : call.count * static_cast<std::size_t>(n);
    for (std::size_t i = 0; i < wanted; ++i) {
      float expected = 0;
      if (call.kind == Call::Kind::all_reduce || scatters) {
        const std::size_t at = scatters ? static_cast<std::size_t>(me) * call.count + i : i;
        for (Rank r = 0; r < n; ++r) expected += element(r, at);
      } else {
        const std::size_t from = i / call.count;
        const std::size_t at =
            gathers ? i % call.count : static_cast<std::size_t>(me) * call.count + i % call.count;
        expected = element(static_cast<Rank>(from), at);
      }
      if (data[i] != expected) return false;
    }
    return device_.error() == nullptr;
  }

  Communicator& comm_;
  const Settings& settings_;
  std::barrier<>& together_;
  cuda::PrimaryContext context_;
  cuda::Current current_;
  cuda::Stream stream_;
  DeviceCommunicator device_;
  cuda::Memory input_;
  cuda::Memory output_;
};

std::vector<Row> measure(int ranks, const Settings& settings) {
  const Coordinator coordinator(ranks, "", 0, Secret::random());
  const UniqueId id{coordinator.id()};
  std::barrier<> together(ranks);
  std::vector<std::vector<Row>> rows(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (Rank r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        auto comm = Communicator::join(id, r, ranks);
        Bench bench(comm, settings, together);
        auto& mine = rows[static_cast<std::size_t>(r)];
        for (std::size_t bytes = 8; bytes <= settings.largest; bytes *= 2) {
          const bool small = bytes <= (64U << 10);
          for (const Call::Kind kind : {Call::Kind::all_reduce, Call::Kind::all_gather,
                                        Call::Kind::reduce_scatter, Call::Kind::all_to_all}) {
            bench.run(kind, bytes, false, mine);
            if (small) bench.run(kind, bytes, true, mine);
          }
        }
      } catch (const Error& error) {
        fmt::print(stderr, "rank {} of {}: {}\n", r, ranks, error.what());
        std::exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Row> slowest = rows[0];
  for (const auto& mine : rows) {
    for (std::size_t i = 0; i < slowest.size(); ++i) {
      slowest[i].seconds = std::max(slowest[i].seconds, mine[i].seconds);
      slowest[i].right = slowest[i].right && mine[i].right;
    }
  }
  return slowest;
}

void print(const Floors& floors, const std::vector<Row>& rows, const char* name) {
  fmt::print("{{\n  \"version\": 1,\n  \"gpu\": \"{}\",\n", name);
  fmt::print(
      "  \"floors\": {{\"copy_GBps\": {:.1f}, \"launch_us\": {:.3f}, "
      "\"graph_launch_us\": {:.3f}, \"flag_round_trip_us\": {:.3f}}},\n  \"rows\": [\n",
      floors.copy_bytes_per_s * 1e-9, floors.launch_s * 1e6, floors.graph_launch_s * 1e6,
      floors.round_trip_s * 1e6);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = rows[i];
    const double rate = static_cast<double>(row.bytes) / row.seconds * 1e-9;
    const double least =
        std::max(bytes_moved(row.kind, row.bytes, row.ranks) / floors.copy_bytes_per_s,
                 floors.round_trip_s + (row.graph ? floors.graph_launch_s : floors.launch_s));
    fmt::print(
        "    {{\"op\": \"{}\", \"ranks\": {}, \"bytes\": {}, \"graph\": {}, \"us\": {:.3f}, "
        "\"algbw_GBps\": {:.3f}, \"busbw_GBps\": {:.3f}, \"over_floor\": {:.3f}, "
        "\"wrong\": {}}}{}\n",
        name_of(static_cast<CollectiveKind>(row.kind)), row.ranks, row.bytes, row.graph,
        row.seconds * 1e6, rate, rate * bus_factor(row.kind, row.ranks), row.seconds / least,
        row.right ? 0 : 1, i + 1 < rows.size() ? "," : "");
  }
  fmt::print("  ]\n}}\n");
}

int run(const Settings& settings) {
  std::string why_not;
  if (cuda::driver(why_not) == nullptr) {
    fmt::print(stderr, "no GPU: {}\n", why_not);
    return 77;
  }
  std::vector<Row> rows;
  Floors floors;
  char name[128] = "";
  {
    const cuda::PrimaryContext context(0);
    const cuda::Current current(context.get());
    api().device_name(name, sizeof name, 0);
    floors = measure_floors(settings);
  }
  bool right = true;
  for (int ranks = 2; ranks <= settings.most_ranks; ranks *= 2) {
    for (const Row& row : measure(ranks, settings)) {
      rows.push_back(row);
      right = right && row.right;
    }
  }
  print(floors, rows, name);
  return right ? 0 : 1;
}

}  // namespace
}  // namespace chorus

// device_bench [LARGEST_BYTES [MOST_RANKS [REPEATS]]]
int main(int argc, char** argv) {
  chorus::Settings settings;
  if (argc > 1) settings.largest = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) settings.most_ranks = std::atoi(argv[2]);
  if (argc > 3) settings.repeats = std::atoi(argv[3]);
  try {
    return chorus::run(settings);
  } catch (const chorus::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
