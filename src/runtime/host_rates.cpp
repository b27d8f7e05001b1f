#include "runtime/host_rates.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "model/json.hpp"
#include "model/json_reader.hpp"

namespace chorus {
namespace {

constexpr int kHostRatesVersion = 1;
constexpr double kMostSampleSeconds = 1e3;
constexpr std::size_t kMostSamples = 64;
constexpr std::string_view kDistances[] = {"siblings", "cache", "package", "packages"};
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
  node.expect_members({"bytes", "stage_s", "fetch_s", "kernel_s", "mapped_s"});
  return {.bytes = node.member("bytes").whole(1, std::uint64_t{1} << 40),
          .stage_s = duration(node.member("stage_s")),
          .fetch_s = duration(node.member("fetch_s")),
          .kernel_s = node.member("kernel_s").figure(kMostSampleSeconds),
          .mapped_s = duration(node.member("mapped_s"))};
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

}  // namespace

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

double seconds(const HostRates& rates, double HostRates::Sample::*way, double bytes) {
  const std::vector<HostRates::Sample>& samples = rates.pairs.back().samples;
  auto after = std::ranges::find_if(
      samples, [&](const auto& sample) { return static_cast<double>(sample.bytes) >= bytes; });
  if (after == samples.begin()) {  // down to nothing, which takes as long as the least
    return samples.front().*way;
  }
  if (after == samples.end()) --after;
  const HostRates::Sample& low = *std::prev(after);
  const HostRates::Sample& high = *after;
  const double slope =
      std::max(0.0, high.*way - low.*way) / static_cast<double>(high.bytes - low.bytes);
  return low.*way + slope * (bytes - static_cast<double>(low.bytes));
}

bool kernel_copies_pay(const HostRates& rates, const std::vector<RankLoad>& ranks, int cores,
                       double slot_bytes) {
  if (!rates.kernel_copies()) return false;
  using Sample = HostRates::Sample;
  const auto time = [&](double Sample::*way, double bytes) {
    return bytes > 0 ? seconds(rates, way, bytes) : 0;
  };
  double stage_most = 0, fetch_most = 0, both_most = 0, both_all = 0;
  double kernel_most = 0, kernel_all = 0, most_bytes = 0;
  for (const RankLoad& rank : ranks) {
    const double stage_s = time(&Sample::stage_s, rank.staged_bytes);
    const double fetch_s = time(&Sample::fetch_s, rank.fetched_bytes);
    const double kernel_s = time(&Sample::kernel_s, rank.fetched_bytes);
    stage_most = std::max(stage_most, stage_s);
    fetch_most = std::max(fetch_most, fetch_s);
    both_most = std::max(both_most, stage_s + fetch_s);
    both_all += stage_s + fetch_s;
    kernel_most = std::max(kernel_most, kernel_s);
    kernel_all += kernel_s;
    most_bytes = std::max({most_bytes, rank.staged_bytes, rank.fetched_bytes});
  }
  if (static_cast<int>(ranks.size()) > cores) return kernel_all < both_all;
  // Tile by tile, one is staged while another is fetched; the first has to be staged before.
  const double first = most_bytes > slot_bytes ? slot_bytes / most_bytes : 1;
  const double staged_s = std::max(both_most, first * stage_most + fetch_most);
  // Who is read has to wait until the others are done.
  return kernel_most + rates.pairs.back().line_s < staged_s;
}

MessageSizes kernel_message_sizes(const HostRates& rates, int ranks, int cores,
                                  std::size_t slot_bytes) {
  const auto pays = [&](std::size_t bytes) {
    const auto size = static_cast<double>(bytes);
    std::vector<RankLoad> loads(static_cast<std::size_t>(std::max(ranks, 2)));
    loads[0].staged_bytes = loads[1].fetched_bytes = size;
    return kernel_copies_pay(rates, loads, cores, size);
  };
  MessageSizes sizes;
  for (std::size_t bytes = 1024; bytes <= slot_bytes; bytes *= 2) {
    if (!pays(bytes)) {
      sizes = {};
    } else if (sizes.at_least == 0) {
      sizes = {.at_least = bytes, .less_than = slot_bytes};
    }
  }
  // What is longer than a slot comes in slots, one of which is filled while another is emptied.
  using Sample = HostRates::Sample;
  const auto slot = static_cast<double>(slot_bytes);
  const double in_turn_s =
      std::max(seconds(rates, &Sample::stage_s, slot), seconds(rates, &Sample::fetch_s, slot));
  if (sizes.at_least > 0 && seconds(rates, &Sample::kernel_s, slot) < in_turn_s) {
    sizes.less_than = slot_bytes + 1;
  }
  return sizes;
}

std::string to_json(const HostRates& rates) {
  std::string text = "{\n  \"format\": \"chorus-host\",\n";
  text += fmt::format(
      "  \"version\": {},\n  \"machine\": {},\n  \"measured_at_s\": {},\n  \"turn_s\": {},\n"
      "  \"system_call_s\": {},\n  \"wake_s\": {},\n  \"pairs\": [",
      kHostRatesVersion, json::quote(rates.machine), rates.measured_at_s, rates.turn_s,
      rates.system_call_s, rates.wake_s);
  for (std::size_t i = 0; i < rates.pairs.size(); ++i) {
    const HostRates::Pair& pair = rates.pairs[i];
    text += fmt::format(
        "{}\n    {{\"distance\": {}, \"cores\": [{}, {}], \"line_s\": {}, \"samples\": [",
        i == 0 ? "" : ",", json::quote(pair.distance), pair.cores[0], pair.cores[1], pair.line_s);
    for (std::size_t k = 0; k < pair.samples.size(); ++k) {
      const HostRates::Sample& sample = pair.samples[k];
      text += fmt::format(
          "{}\n      {{\"bytes\": {}, \"stage_s\": {}, \"fetch_s\": {}, \"kernel_s\": {}, "
          "\"mapped_s\": {}}}",
          k == 0 ? "" : ",", sample.bytes, sample.stage_s, sample.fetch_s, sample.kernel_s,
          sample.mapped_s);
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
                       "wake_s", "pairs"});
  HostRates rates;
  rates.machine = root.member("machine").text();
  if (rates.machine.empty()) root.member("machine").fail("must name the machine");
  rates.measured_at_s = static_cast<std::int64_t>(root.member("measured_at_s").whole(0, kEpochEnd));
  rates.turn_s = duration(root.member("turn_s"));
  rates.system_call_s = duration(root.member("system_call_s"));
  rates.wake_s = duration(root.member("wake_s"));
  const json::Node pairs = root.member("pairs");
  if (pairs.size() < 1 || pairs.size() > std::size(kDistances)) pairs.fail("must be 1 to 4");
  for (std::size_t i = 0; i < pairs.size(); ++i) rates.pairs.push_back(pair_from(pairs.item(i)));
  return rates;
}

std::string describe(const HostRates& rates) {
  std::string text = rates.is_measured() ? fmt::format("{}\n", rates.machine)
                                         : std::string("assumed: nothing was measured\n");
  text +=
      fmt::format("a system call {:.2f} us, a wake-up {:.1f} us, a turn of the core {:.2f} us\n",
                  rates.system_call_s * 1e6, rates.wake_s * 1e6, rates.turn_s * 1e6);
  for (const HostRates::Pair& pair : rates.pairs) {
    text += fmt::format("cores {} and {} ({}): a line in {:.0f} ns; GB/s:\n", pair.cores[0],
                        pair.cores[1], pair.distance, pair.line_s * 1e9);
    text += fmt::format("  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}\n", "bytes", "into slots",
                        "from slots", "by kernel", "mapped");
    for (const HostRates::Sample& sample : pair.samples) {
      const std::string kernel =
          sample.kernel_s > 0 ? fmt::format("{:.2f}", gb_s(sample.bytes, sample.kernel_s)) : "-";
      text += fmt::format("  {:>10}  {:>10.2f}  {:>10.2f}  {:>10}  {:>10.2f}\n", sample.bytes,
                          gb_s(sample.bytes, sample.stage_s), gb_s(sample.bytes, sample.fetch_s),
                          kernel, gb_s(sample.bytes, sample.mapped_s));
    }
  }
  return text;
}

}  // namespace chorus
