// Latency and bandwidth of puts over one RDMA link, between two processes: what ib_write_lat and
// ib_write_bw of perftest measure, in the same guest and the same way (half a round trip; one
// direction).
//
//   rdma_bench lat|bw BYTES ROUNDS
#include <cstdio>
#include <cstdlib>
#include <string>

#include "transports/ends.hpp"

namespace chorus::testing {
namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void latency(End& end, std::size_t bytes, std::uint64_t rounds) {
  const auto src = pattern(bytes, 1);
  std::vector<double> times;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    if (end.rank == 1) {
      while (end.link.arrivals(0) <= i) static_cast<void>(end.link.progress());
    }
    while (!end.link.try_put(src, 0, 0, 1)) end.advance();
    if (end.rank == 0) {
      while (end.link.arrivals(0) <= i) static_cast<void>(end.link.progress());
      times.push_back(seconds_since(start) / 2);
    }
  }
  if (end.rank == 1) return;
  std::sort(times.begin(), times.end());
  std::printf("link lat %zu bytes: min %.2f typical %.2f p99 %.2f us\n", bytes, times[0] * 1e6,
              times[times.size() / 2] * 1e6, times[times.size() * 99 / 100] * 1e6);
}

void bandwidth(End& end, std::size_t bytes, std::uint64_t rounds) {
  const auto src = pattern(bytes, 1);
  const auto start = Clock::now();
  constexpr std::uint64_t kUnderWay = 16;
  for (std::uint64_t i = 0; i < rounds; ++i) {
    if (end.rank == 0) {
      if (i >= kUnderWay && i % 8 == 0) {
        while (end.link.arrivals(1) < (i - kUnderWay) / 8) static_cast<void>(end.link.progress());
      }
      while (!end.link.try_put(src, i % kUnderWay * bytes, 0, 1)) end.advance();
    } else {
      // perftest's receiver sleeps; this one gives way to the adapter, which is software here.
      while (end.link.arrivals(0) <= i) {
        static_cast<void>(end.link.progress());
        ::sched_yield();
      }
      if (i % 8 == 7) end.signal(1, 0);
    }
  }
  if (end.rank == 1) return;
  while (end.link.arrivals(1) < rounds / 8) static_cast<void>(end.link.progress());
  const double time = seconds_since(start);
  std::printf("link bw %zu bytes: %.2f MB/s\n", bytes,
              static_cast<double>(bytes * rounds) / time / 1e6);
}

int measure(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: rdma_bench lat|bw BYTES ROUNDS\n", stderr);
    return 2;
  }
  const std::string what = argv[1];
  const auto bytes = static_cast<std::size_t>(std::strtoull(argv[2], nullptr, 10));
  const auto rounds = std::strtoull(argv[3], nullptr, 10);
  Way way{.transport = "rdma", .interface_name = "", .processes = true, .name = "rdma"};
  if (const char* list = std::getenv("CHORUS_TEST_HCAS")) {  // "rxe0,rxe1": of each end
    const std::string text = list;
    way.hca = {"=" + text.substr(0, text.find(',')), "=" + text.substr(text.find(',') + 1)};
  }
  run_both(way, {.region_bytes = 16 * bytes, .num_channels = 2, .max_outstanding = 32},
           [&](End& end) {
             end.until([&] { return end.link.progress(); }, "connecting");
             end.meet();
             what == "lat" ? latency(end, bytes, rounds) : bandwidth(end, bytes, rounds);
             end.meet();
           });
  return 0;
}

}  // namespace
}  // namespace chorus::testing

int main(int argc, char** argv) { return chorus::testing::measure(argc, argv); }
