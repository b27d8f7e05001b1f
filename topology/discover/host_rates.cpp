#include "topology/discover/host_rates.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/json/json.hpp"
#include "model/json/reader.hpp"

namespace chorus {
namespace {

constexpr int kHostRatesVersion = 4;
constexpr double kMostSampleSeconds = 1e3;
constexpr double kMostTogether = 1e3;
constexpr std::size_t kMostSamples = 64;
// By Distance.
constexpr std::string_view kDistances[kNumDistances] = {"siblings", "cache", "package", "packages"};
constexpr auto kEpochEnd = std::uint64_t{1} << 40;

double gb_s(std::uint64_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds * 1e-9 : 0;
}

/// A duration that took place.
double duration(const json::Node& node) {
  const double value = node.figure(kMostSampleSeconds);
  if (value <= 0) node.fail("takes more than no time");
  return value;
}

HostRates::Sample sample_from(const json::Node& node) {
  node.expect_members({"bytes", "stage_s", "fetch_s", "kernel_s", "mapped_s", "together"},
                      {"stream_s", "fetch_streamed_s"});
  const auto where_measured = [&](const char* way) {
    return node.has(way) ? node.member(way).figure(kMostSampleSeconds) : 0;
  };
  const json::Node together = node.member("together");
  if (together.figure(kMostTogether) < 1) together.fail("is at least 1");
  return {.bytes = node.member("bytes").whole(1, std::uint64_t{1} << 40),
          .stage_s = duration(node.member("stage_s")),
          .fetch_s = duration(node.member("fetch_s")),
          .kernel_s = node.member("kernel_s").figure(kMostSampleSeconds),
          .mapped_s = duration(node.member("mapped_s")),
          .together = together.figure(),
          .stream_s = where_measured("stream_s"),
          .fetch_streamed_s = where_measured("fetch_streamed_s")};
}

HostRates::Pair pair_from(const json::Node& node) {
  node.expect_members({"distance", "cores", "line_s", "samples"});
  HostRates::Pair pair;
  pair.distance = node.member("distance").text();
  if (std::ranges::find(kDistances, pair.distance) == std::end(kDistances)) {
    node.member("distance").fail("must be siblings, cache, package or packages");
  }
  const json::Node cores = node.member("cores");
  if (cores.size() != 2) cores.fail("must be two");
  for (std::size_t i = 0; i < 2; ++i) pair.cores[i] = cores.item(i).integer(0, 1 << 20);
  pair.line_s = duration(node.member("line_s"));
  const json::Node samples = node.member("samples");
  if (samples.size() < 2 || samples.size() > kMostSamples) samples.fail("must be 2 to 64");
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const HostRates::Sample sample = sample_from(samples.item(i));
    if (!pair.samples.empty()) {
      const HostRates::Sample& last = pair.samples.back();
      if (sample.bytes <= last.bytes) samples.fail("must ascend");
      if ((sample.kernel_s > 0) != (last.kernel_s > 0)) {
        samples.fail("the kernel copies all sizes or none");
      }
    }
    pair.samples.push_back(sample);
  }
  return pair;
}

HostRates::Loopback loopback_from(const json::Node& node) {
  node.expect_members({"latency_s", "message_s", "byte_s"});
  return {.latency_s = duration(node.member("latency_s")),
          .message_s = duration(node.member("message_s")),
          .byte_s = duration(node.member("byte_s"))};
}

std::string text_of(const HostRates::Loopback& loopback) {
  return fmt::format("  \"loopback\": {{\"latency_s\": {}, \"message_s\": {}, \"byte_s\": {}}},\n",
                     loopback.latency_s, loopback.message_s, loopback.byte_s);
}

}  // namespace

const HostRates::Loopback& loopback_of(const HostRates& rates) {
  static constexpr HostRates::Loopback kAssumed{
      .latency_s = 5e-6, .message_s = 5.5e-6, .byte_s = 1 / 3e9};
  return rates.loopback ? *rates.loopback : kAssumed;
}

const HostRates& assumed_host_rates() {
  static const HostRates rates{
      .machine = {},
      .measured_at_s = 0,
      .turn_s = 0.8e-6,
      .system_call_s = 0.1e-6,
      .wake_s = 20e-6,
      .pairs = {{.distance = "package",
                 .cores = {},
                 .line_s = 0.15e-6,
                 .samples = {{1 << 16, 4e-6, 5e-6, 0, 5e-6}, {1 << 20, 64e-6, 80e-6, 0, 80e-6}}}}};
  return rates;
}

const HostRates::Pair& pair_at(const HostRates& rates, Distance distance) {
  for (const HostRates::Pair& pair : rates.pairs) {
    const auto number = std::ranges::find(kDistances, pair.distance) - std::begin(kDistances);
    if (number >= static_cast<std::ptrdiff_t>(distance)) return pair;
  }
  return rates.pairs.back();
}

double seconds(const HostRates& rates, double HostRates::Sample::*way, double bytes,
               Distance distance) {
  const std::vector<HostRates::Sample>& samples = pair_at(rates, distance).samples;
  auto after = std::ranges::find_if(
      samples, [&](const auto& sample) { return static_cast<double>(sample.bytes) >= bytes; });
  if (after == samples.end()) --after;
  // Of no bytes at all the kernel's copy is a system call.
  const HostRates::Sample none{.kernel_s = std::min(rates.system_call_s, samples.front().kernel_s)};
  const HostRates::Sample& low = after == samples.begin() ? none : *std::prev(after);
  const HostRates::Sample& high = *after;
  const double slope =
      std::max(0.0, high.*way - low.*way) / static_cast<double>(high.bytes - low.bytes);
  return low.*way + slope * (bytes - static_cast<double>(low.bytes));
}

double seconds_together(const HostRates& rates, double HostRates::Sample::*way, double bytes,
                        Distance distance) {
  const std::vector<HostRates::Sample>& samples = pair_at(rates, distance).samples;
  auto sample = std::ranges::find_if(
      samples, [&](const auto& each) { return static_cast<double>(each.bytes) >= bytes; });
  if (sample == samples.end()) --sample;
  return sample->together * seconds(rates, way, bytes, distance);
}

double least_seconds_per_byte(const HostRates& rates, double HostRates::Sample::*way,
                              Distance distance) {
  const std::vector<HostRates::Sample>& samples = pair_at(rates, distance).samples;
  double least = std::numeric_limits<double>::infinity();
  for (const HostRates::Sample& sample : samples) {
    if (sample.*way > 0) least = std::min(least, sample.*way / static_cast<double>(sample.bytes));
  }
  // Nor do larger sizes than were sampled take less.
  const auto last = static_cast<double>(samples.back().bytes);
  const double beyond =
      seconds(rates, way, 2 * last, distance) - seconds(rates, way, last, distance);
  return std::isfinite(least) && beyond > 0 ? std::min(least, beyond / last) : least;
}

std::string to_json(const HostRates& rates) {
  std::string text = "{\n  \"format\": \"chorus-host\",\n";
  text += fmt::format(
      "  \"version\": {},\n  \"machine\": {},\n  \"measured_at_s\": {},\n  \"turn_s\": {},\n"
      "  \"system_call_s\": {},\n  \"wake_s\": {},\n{}  \"pairs\": [",
      kHostRatesVersion, json::quote(rates.machine), rates.measured_at_s, rates.turn_s,
      rates.system_call_s, rates.wake_s, rates.loopback ? text_of(*rates.loopback) : "");
  for (std::size_t i = 0; i < rates.pairs.size(); ++i) {
    const HostRates::Pair& pair = rates.pairs[i];
    text += fmt::format(
        "{}\n    {{\"distance\": {}, \"cores\": [{}, {}], \"line_s\": {}, \"samples\": [",
        i == 0 ? "" : ",", json::quote(pair.distance), pair.cores[0], pair.cores[1], pair.line_s);
    for (std::size_t k = 0; k < pair.samples.size(); ++k) {
      const HostRates::Sample& sample = pair.samples[k];
      text += fmt::format(
          "{}\n      {{\"bytes\": {}, \"stage_s\": {}, \"fetch_s\": {}, \"kernel_s\": {}, "
          "\"mapped_s\": {}, \"together\": {}, \"stream_s\": {}, \"fetch_streamed_s\": {}}}",
          k == 0 ? "" : ",", sample.bytes, sample.stage_s, sample.fetch_s, sample.kernel_s,
          sample.mapped_s, sample.together, sample.stream_s, sample.fetch_streamed_s);
    }
    text += "]}";
  }
  return text + "]\n}\n";
}

HostRates host_rates_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where);
  const json::Node root(value, where);
  json::expect_format(root, "chorus-host", kHostRatesVersion);
  root.expect_members({"format", "version", "machine", "measured_at_s", "turn_s", "system_call_s",
                       "wake_s", "pairs"},
                      {"loopback"});
  HostRates rates;
  rates.machine = root.member("machine").text();
  if (rates.machine.empty()) root.member("machine").fail("must name the machine");
  rates.measured_at_s = static_cast<std::int64_t>(root.member("measured_at_s").whole(0, kEpochEnd));
  rates.turn_s = duration(root.member("turn_s"));
  rates.system_call_s = duration(root.member("system_call_s"));
  rates.wake_s = duration(root.member("wake_s"));
  if (root.has("loopback")) rates.loopback = loopback_from(root.member("loopback"));
  const json::Node pairs = root.member("pairs");
  if (pairs.size() < 1 || pairs.size() > std::size(kDistances)) pairs.fail("must be 1 to 4");
  std::ptrdiff_t last = -1;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    rates.pairs.push_back(pair_from(pairs.item(i)));
    const auto here =
        std::ranges::find(kDistances, rates.pairs.back().distance) - std::begin(kDistances);
    if (here <= last)
      pairs.item(i).member("distance").fail("comes after one as far: nearest first");
    last = here;
  }
  return rates;
}

std::string describe(const HostRates& rates) {
  std::string text = rates.is_measured() ? fmt::format("{}\n", rates.machine)
                                         : std::string("assumed: nothing was measured\n");
  text +=
      fmt::format("a system call {:.2f} us, a wake-up {:.1f} us, a turn of the core {:.2f} us\n",
                  rates.system_call_s * 1e6, rates.wake_s * 1e6, rates.turn_s * 1e6);
  const HostRates::Loopback& loopback = loopback_of(rates);
  text +=
      fmt::format("TCP within the host{}: {:.1f} us one way, {:.1f} us of a core, {:.2f} GB/s\n",
                  rates.loopback ? "" : " (assumed)", loopback.latency_s * 1e6,
                  loopback.message_s * 1e6, 1e-9 / loopback.byte_s);
  for (const HostRates::Pair& pair : rates.pairs) {
    text += fmt::format("cores {} and {} ({}): a line in {:.0f} ns; GB/s:\n", pair.cores[0],
                        pair.cores[1], pair.distance, pair.line_s * 1e9);
    text += fmt::format("  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>14}\n",
                        "bytes", "into slots", "from slots", "streamed", "from there", "by kernel",
                        "mapped", "less, together");
    for (const HostRates::Sample& sample : pair.samples) {
      const auto rate = [&](double way_s) {
        return way_s > 0 ? fmt::format("{:.2f}", gb_s(sample.bytes, way_s)) : "-";
      };
      text +=
          fmt::format("  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>14}\n",
                      sample.bytes, rate(sample.stage_s), rate(sample.fetch_s),
                      rate(sample.stream_s), rate(sample.fetch_streamed_s), rate(sample.kernel_s),
                      rate(sample.mapped_s), fmt::format("{:.2f} times", sample.together));
    }
  }
  return text;
}

}  // namespace chorus
