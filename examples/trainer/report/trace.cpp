#include "report/trace.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace trainer {
namespace {

constexpr std::array<const char*, 3> kLaneNames = {"compute", "standing still", "in flight"};

/// Names are text of this program, the same on every rank: they travel as text.
struct PackedSpan {
  std::array<char, 24> name;
  std::array<char, 24> axis;
  double begin_s, end_s;
  std::int32_t chunk, micro_batch;
  std::uint8_t lane;
};

std::array<char, 24> packed(const char* text) {
  std::array<char, 24> chars{};
  for (std::size_t i = 0; i + 1 < chars.size() && text[i] != '\0'; ++i) chars[i] = text[i];
  return chars;
}

/// One copy of every text, for as long as the program runs.
const char* kept(const std::array<char, 24>& chars) {
  static std::map<std::string, std::string> texts;
  const std::string text(chars.data());
  return texts.emplace(text, text).first->second.c_str();
}

using Interval = std::pair<double, double>;

/// Disjoint and in order.
std::vector<Interval> joined(const std::vector<Span>& spans, Span::Lane lane) {
  std::vector<Interval> all;
  for (const Span& s : spans) {
    if (s.lane == lane) all.emplace_back(s.begin_s, s.end_s);
  }
  std::ranges::sort(all);
  std::vector<Interval> out;
  for (const Interval& i : all) {
    if (!out.empty() && i.first <= out.back().second) {
      out.back().second = std::max(out.back().second, i.second);
    } else {
      out.push_back(i);
    }
  }
  return out;
}

double common(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    sum += std::max(0.0, std::min(a[i].second, b[j].second) - std::max(a[i].first, b[j].first));
    (a[i].second < b[j].second ? i : j) += 1;
  }
  return sum;
}

double length(const std::vector<Interval>& all) {
  double sum = 0;
  for (const auto& [begin, end] : all) sum += end - begin;
  return sum;
}

const char* color_of(const Span& s) {
  static constexpr std::pair<std::string_view, const char*> kColors[] = {
      {"forward", "#4c9f70"},     {"backward", "#2f6b8f"}, {"weights", "#6a8caf"},
      {"update", "#b8b042"},      {"data", "#8e6bbf"},     {"tensor", "#d98e32"},
      {"pipeline", "#5bb0c9"},    {"expert", "#c96ba4"},   {"in-node", "#a58bd0"},
      {"across-nodes", "#6f4fa3"}};
  const std::string_view key = s.lane == Span::Lane::compute ? s.name : s.axis;
  for (const auto& [name, color] : kColors) {
    if (name == key) return color;
  }
  return "#999999";
}

}  // namespace

void Trace::start(std::size_t most_spans, Gpu* gpu) {
  spans_.clear();
  spans_.reserve(most_spans);
  timed_.clear();
  timed_.reserve(gpu == nullptr ? 0 : most_spans);
  left_out_ = 0;
  gpu_ = gpu;
  if (gpu_ != nullptr) {
    gpu_->finish();
    round_ = gpu_->keep_time(2 * most_spans);
  }
  begin_ = Clock::now();
  on_ = true;
}

void Trace::stop() {
  if (!on_) return;
  on_ = false;
  if (gpu_ == nullptr) return;
  for (const Timed& t : timed_) {
    Span& span = spans_[t.span];
    // What began before the trace did is cut.
    span.begin_s = t.begin.round == round_ ? gpu_->seconds(t.begin) : 0;
    span.end_s = gpu_->seconds(t.end);
  }
  gpu_->keep_time(0);
}

Trace::Mark Trace::mark() {
  if (on_ && gpu_ != nullptr) return gpu_->stamp();
  return Clock::now();
}

void Trace::add(Span::Lane lane, const char* name, const char* axis, Mark from, Mark to,
                std::int32_t chunk, std::int32_t micro_batch) {
  if (!on_) return;
  const bool by_device = gpu_ != nullptr && to.host == Clock::time_point();
  if (spans_.size() == spans_.capacity() || (by_device && to.device.round != round_)) {
    ++left_out_;
    return;
  }
  if (by_device) {
    timed_.push_back({spans_.size(), from.device, to.device});
    spans_.push_back({lane, name, axis, 0, 0, chunk, micro_batch});
    return;
  }
  const Clock::time_point begin = from.host;
  const Clock::time_point end = to.host;
  const auto since = [&](Clock::time_point t) {
    return std::chrono::duration<double>(t - begin_).count();
  };
  // What began before the trace did is cut.
  spans_.push_back({lane, name, axis, std::max(0.0, since(begin)), since(end), chunk, micro_batch});
}

std::vector<std::vector<Span>> gather_spans(chorus::Communicator& world, const Trace& trace) {
  std::vector<PackedSpan> mine;
  for (const Span& s : trace.spans()) {
    mine.push_back({packed(s.name), packed(s.axis), s.begin_s, s.end_s, s.chunk, s.micro_batch,
                    static_cast<std::uint8_t>(s.lane)});
  }
  const auto n = static_cast<std::size_t>(world.world_size());
  const std::uint64_t count = mine.size();
  std::vector<std::uint64_t> counts(n);
  world.all_gather<std::uint64_t>(std::span(&count, 1), counts);
  const std::size_t most = *std::ranges::max_element(counts);
  mine.resize(most);
  std::vector<PackedSpan> all(world.rank() == 0 ? n * most : 0);
  const auto bytes = [](std::vector<PackedSpan>& of) {
    return std::span(reinterpret_cast<std::uint8_t*>(of.data()), of.size() * sizeof(PackedSpan));
  };
  world.gather<std::uint8_t>(bytes(mine), bytes(all), 0);
  std::vector<std::vector<Span>> ranks(world.rank() == 0 ? n : 0);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t i = 0; i < counts[r]; ++i) {
      const PackedSpan& w = all[r * most + i];
      ranks[r].push_back({static_cast<Span::Lane>(w.lane), kept(w.name), kept(w.axis), w.begin_s,
                          w.end_s, w.chunk, w.micro_batch});
    }
  }
  return ranks;
}

std::string chrome_trace(std::span<const std::vector<Span>> ranks) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  const char* comma = "\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    text += fmt::format(
        "{}{{\"ph\": \"M\", \"name\": \"process_name\", \"pid\": {}, \"args\": {{\"name\": \"rank "
        "{}\"}}}}",
        comma, r, r);
    comma = ",\n";
    for (std::size_t lane = 0; lane < kLaneNames.size(); ++lane) {
      text += fmt::format(
          ",\n{{\"ph\": \"M\", \"name\": \"thread_name\", \"pid\": {}, \"tid\": {}, \"args\": "
          "{{\"name\": \"{}\"}}}}",
          r, lane, kLaneNames[lane]);
    }
    for (const Span& s : ranks[r]) {
      // Calls in flight cross each other: asynchronous events, which Chrome stacks.
      text += fmt::format(
          ",\n{{\"ph\": \"X\", \"name\": \"{}\", \"cat\": \"{}\", \"pid\": {}, \"tid\": {}, "
          "\"ts\": "
          "{:.3f}, \"dur\": {:.3f}, \"args\": {{\"axis\": \"{}\", \"chunk\": {}, \"micro_batch\": "
          "{}}}}}",
          s.name, kLaneNames[static_cast<std::size_t>(s.lane)], r, static_cast<int>(s.lane),
          1e6 * s.begin_s, 1e6 * (s.end_s - s.begin_s), s.axis, s.chunk, s.micro_batch);
    }
  }
  return text + "\n]}\n";
}

double overlap_share(const std::vector<Span>& spans) {
  const auto flight = joined(spans, Span::Lane::in_flight);
  const double all = length(flight);
  return all > 0 ? 1 - common(flight, joined(spans, Span::Lane::exposed)) / all : 0;
}

std::string trace_svg(std::span<const std::vector<Span>> ranks) {
  constexpr double kWidth = 1100, kLeft = 70, kLane = 18, kRank = 58, kTop = 28;
  double end = 1e-9;
  for (const auto& spans : ranks) {
    for (const Span& s : spans) end = std::max(end, s.end_s);
  }
  const auto x = [&](double t) { return kLeft + kWidth * t / end; };
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"white\"/>\n<text x=\"{:.0f}\" y=\"14\">{:.2f} ms; above: passes (green forward, blue "
      "backward), red where the rank stands still; below: calls in flight</text>\n",
      kLeft + kWidth + 90, kTop + kRank * double(ranks.size()) + 6, kLeft, 1e3 * end);
  const auto bar = [&](const Span& s, double y, double height, const char* color, double opacity) {
    text += fmt::format(
        "<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"{}\" "
        "opacity=\"{}\"><title>{} {} {:.3f} ms</title></rect>\n",
        x(s.begin_s), y, std::max(0.2, x(s.end_s) - x(s.begin_s)), height, color, opacity, s.axis,
        s.name, 1e3 * (s.end_s - s.begin_s));
  };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const double y = kTop + kRank * double(r);
    text += fmt::format("<text x=\"4\" y=\"{:.1f}\">rank {}</text>\n", y + 14, r);
    for (const Span::Lane lane :
         {Span::Lane::compute, Span::Lane::exposed, Span::Lane::in_flight}) {
      for (const Span& s : ranks[r]) {
        if (s.lane != lane) continue;
        if (lane == Span::Lane::in_flight) {
          bar(s, y + kLane + 4, kLane, color_of(s), 0.6);
        } else {
          bar(s, y, kLane, lane == Span::Lane::exposed ? "#d03030" : color_of(s), 1);
        }
      }
    }
    text += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\">{:.0f} % hidden</text>\n",
                        kLeft + kWidth + 6, y + kLane + 18, 100 * overlap_share(ranks[r]));
  }
  return text + "</svg>\n";
}

}  // namespace trainer
