#include "report/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "model/params.hpp"
#include "report/volume.hpp"

namespace trainer {
namespace {

std::string describe(const Config& c) {
  const Layout& l = c.layout;
  std::string text =
      fmt::format("{} ranks = dp {} x tp {} x pp {}", l.world_size(), l.dp, l.tp, l.pp);
  if (c.model.experts > 0) text += fmt::format(", ep {} of dp", l.ep);
  text += fmt::format(", ZeRO-{}, {} micro-batches of {} sequences", l.zero, l.micro_batches,
                      l.shares.empty() ? fmt::format("{}", c.training.batch)
                                       : fmt::format("{}", fmt::join(l.shares, "+")));
  if (l.sequence_parallel) text += ", sequence parallel";
  if (l.pp > 1) text += fmt::format(", {}", name_of(l.pipeline));
  if (l.recompute != Recompute::none) {
    text += fmt::format(", {} recomputation", name_of(l.recompute));
  }
  return text;
}

template <class Visit>
void for_each_used(const CommLog& log, Visit visit) {
  for (std::size_t a = 0; a < log.table.size(); ++a) {
    for (std::size_t k = 0; k < log.table[a].size(); ++k) {
      const Traffic& t = log.table[a][k];
      if (t.calls > 0) visit(static_cast<Axis>(a), static_cast<Kind>(k), t);
    }
  }
}

}  // namespace

std::string human_bytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB", "PB"};
  int unit = 0;
  for (; bytes >= 1000 && unit < 5; ++unit) bytes /= 1000;
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 2, kUnits[unit]);
}

std::string dry_run_report(const Config& config) {
  const Model& m = config.model;
  const Layout& l = config.layout;
  const double tokens = double(config.sequences()) * m.context * l.micro_batches;
  std::string text = fmt::format("model   {}: {}\n", config.name, m.signature());
  text += fmt::format("        {} parameters ({:.0f} by equation 1 of Anthony et al.)\n",
                      parameters(m), parameters_by_equation_1(m));
  text += fmt::format("layout  {}\n", describe(config));
  text += fmt::format("step    {:.0f} tokens, {:.3g} floating-point operations\n", tokens,
                      tokens * flops_per_token(m));
  if (l.pp > 1) {
    const std::vector<PassTimes> equal(
        static_cast<std::size_t>(l.chunks()),
        l.pipeline == Pipeline::zero_bubble ? PassTimes{1, 1, 1} : PassTimes{1, 2, 0});
    text += fmt::format("        layers by chunk {}; idle {:.1f} % if all chunks took the same\n",
                        fmt::join(partition_of(m, l), ","),
                        100 * simulated(pipeline_order(l), l, equal).bubble_share);
  }
  text += fmt::format("\n{:<14}", "memory");
  for (const char* use : kUseNames) text += fmt::format("{:>13}", use);
  text += fmt::format("{:>13}\n", "all");
  // Ranks of one pipeline stage differ only in which slice they hold.
  for (int stage = 0; stage < l.pp; ++stage) {
    const Trainer<float> rank(config, stage * l.dp * l.tp);
    const Arena& arena = rank.memory();
    text += fmt::format("{:<14}", fmt::format("pp rank {}", stage));
    for (std::size_t use = 0; use < kUseNames.size(); ++use) {
      text += fmt::format("{:>13}", human_bytes(double(arena.used_bytes(static_cast<Use>(use)))));
    }
    text += fmt::format("{:>13}\n", human_bytes(double(arena.used_bytes())));
  }
  text += fmt::format("\n{:<14}", "sent per step");
  for (const char* axis : kAxisNames) text += fmt::format("{:>16}", axis);
  text += "\n";
  for (int stage = 0; stage < l.pp; ++stage) {
    const Volume volume = predicted_volume(config, stage * l.dp * l.tp, sizeof(float));
    text += fmt::format("{:<14}", fmt::format("pp rank {}", stage));
    for (const std::uint64_t bytes : volume)
      text += fmt::format("{:>16}", human_bytes(double(bytes)));
    text += "\n";
  }
  if (m.experts > 0 && l.ep > 1) text += "(expert: the row counts; the rows depend on the gate)\n";
  return text;
}

std::string dry_run_json(const Config& config) {
  const Layout& l = config.layout;
  std::string text = fmt::format(
      "{{\"version\": 1, \"layout\": \"{}\", \"parameters\": {}, \"sent_bytes_by_stage\": [",
      describe(config), parameters(config.model));
  for (int stage = 0; stage < l.pp; ++stage) {
    const Volume volume = predicted_volume(config, stage * l.dp * l.tp, sizeof(float));
    text += stage > 0 ? ", {" : "{";
    for (std::size_t a = 0; a < volume.size(); ++a) {
      text += fmt::format("{}\"{}\": {}", a > 0 ? ", " : "", kAxisNames[a], volume[a]);
    }
    text += "}";
  }
  return text + "]}\n";
}

std::string comm_report(const Config& config, const CommLog& log, int rank, int steps,
                        double seconds) {
  std::string text =
      fmt::format("communication of rank {} in {} steps, {:.2f} s\n", rank, steps, seconds);
  std::uint64_t all = 0;
  for_each_used(log, [&](Axis, Kind, const Traffic& t) { all += t.sent_bytes; });
  text += fmt::format("{:<15} {:<15} {:>8} {:>11} {:>7} {:>11} {:>11} {:>8}\n", "axis", "call",
                      "calls", "sent", "share", "in flight", "exposed", "hidden");
  for_each_used(log, [&](Axis axis, Kind kind, const Traffic& t) {
    text += fmt::format("{:<15} {:<15} {:>8} {:>11} {:>6.1f}% {:>9.1f}ms {:>9.1f}ms {:>7.0f}%\n",
                        kAxisNames[static_cast<std::size_t>(axis)], name_of(kind), t.calls,
                        human_bytes(double(t.sent_bytes)),
                        100.0 * double(t.sent_bytes) / double(std::max<std::uint64_t>(all, 1)),
                        1e3 * t.in_flight_s, 1e3 * t.exposed_s,
                        100 * std::max(0.0, 1 - t.exposed_s / std::max(t.in_flight_s, 1e-12)));
  });
  text += fmt::format("standing still for communication: {:.1f} % of the time\n",
                      seconds > 0 ? 100 * log.exposed_s() / seconds : 0.0);
  text += "\nby formula (bytes sent per step)     predicted        counted\n";
  const Volume volume = predicted_volume(config, rank, sizeof(float));
  const auto compressor = make_compressor(config.training);
  const bool varies = compressor != nullptr && compressor->varies();
  for (std::size_t a = 0; a < volume.size(); ++a) {
    const auto axis = static_cast<Axis>(a);
    const double counted = double(log.sent_bytes(axis)) / steps;
    if (volume[a] == 0 && counted == 0) continue;
    text += fmt::format("  {:<28} {:>15} {:>14.0f}{}\n", kAxisNames[a], volume[a], counted,
                        axis == Axis::expert           ? "  (rows are the gate's choice)"
                        : axis == Axis::data && varies ? "  (predicted: at most)"
                                                       : "");
  }
  text += "\nmessages by size (bytes, calls)\n";
  std::array<std::uint64_t, 40> sizes{};
  for_each_used(log, [&](Axis, Kind, const Traffic& t) {
    for (std::size_t i = 0; i < sizes.size(); ++i) sizes[i] += t.sizes[i];
  });
  const std::uint64_t most = *std::ranges::max_element(sizes);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) continue;
    text += fmt::format("  {:>9} .. {:>9} {:>8} {}\n", human_bytes(double(1ULL << i)),
                        human_bytes(double(2ULL << i)), sizes[i],
                        std::string(static_cast<std::size_t>(1 + 39 * sizes[i] / most), '#'));
  }
  return text;
}

std::string comm_json(const Config& config, const CommLog& log, int rank, int steps,
                      double seconds) {
  std::string text = fmt::format(
      "{{\n  \"version\": 1, \"rank\": {}, \"steps\": {}, \"seconds\": {:.6f},\n  \"layout\": "
      "\"{}\",\n  \"calls\": [",
      rank, steps, seconds, describe(config));
  const char* comma = "";
  for_each_used(log, [&](Axis axis, Kind kind, const Traffic& t) {
    std::vector<std::uint64_t> sizes(t.sizes.begin(), t.sizes.end());
    text += fmt::format(
        "{}\n    {{\"axis\": \"{}\", \"call\": \"{}\", \"calls\": {}, \"sent_bytes\": {}, "
        "\"in_flight_s\": {:.6f}, \"exposed_s\": {:.6f}, \"calls_by_log2_bytes\": [{}]}}",
        comma, kAxisNames[static_cast<std::size_t>(axis)], name_of(kind), t.calls, t.sent_bytes,
        t.in_flight_s, t.exposed_s, fmt::join(sizes, ", "));
    comma = ",";
  });
  const Volume volume = predicted_volume(config, rank, sizeof(float));
  text += "\n  ],\n  \"predicted_bytes_per_step\": {";
  comma = "";
  for (std::size_t a = 0; a < volume.size(); ++a) {
    text += fmt::format("{}\"{}\": {}", comma, kAxisNames[a], volume[a]);
    comma = ", ";
  }
  return text + "}\n}\n";
}

}  // namespace trainer
