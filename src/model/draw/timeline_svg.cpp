#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "base/counted.hpp"
#include "base/index.hpp"
#include "model/draw/svg.hpp"
#include "model/draw/timeline.hpp"
#include "model/draw/timeline_lanes.hpp"
#include "model/draw/timeline_rows.hpp"
#include "model/price/critical_path.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

// All lengths in px.
constexpr double kWidth = 1400;
constexpr double kHeight = 1400;
constexpr double kLetterWidth = 6.3;       // of a label, on average
constexpr std::size_t kLongestLabel = 44;  // letters
constexpr double kTop = 96;
constexpr double kBottom = 84;  // axis and legend
constexpr double kMargin = 20;
constexpr double kNumbers = 150;  // column at the right
constexpr double kStrip = 13;     // phases and critical path
constexpr double kRow = 14;
constexpr double kThinnestRow = 9;
constexpr double kGap = 4;
constexpr double kHalfLetter = 4;  // from the middle of a line of text to its base
constexpr std::size_t kMostRows = 85;
constexpr std::size_t kMostPhases = 8;
constexpr std::size_t kMostBars = 600;  // beyond, rows show their use
constexpr int kMostLanes = 4;
constexpr int kLegendChunks = 16;

/// From little use to full. The palest is told from paper on any printer.
constexpr std::array kShades = {"#b5d3ea", "#93bee0", "#70a8d5", "#4d8fc7",
                                "#3276b3", "#1d5c9b", "#0f437d", "#072b58"};

/// Few chunks: hues as far apart as they can be. Many: a wheel in order, so that neighbours look
/// alike and a wave of chunks is seen as a wave.
std::string colour(ChunkId chunk, int num_chunks) {
  const double turn = static_cast<double>(chunk) / std::max(num_chunks, 1);
  const double lightness = chunk % 2 == 0 ? 52 : 64;
  return fmt::format("hsl({:.1f},62%,{:.0f}%)", 360 * turn, lightness);
}

struct Bar {
  std::size_t entry = 0;  // of the timeline
  int lane = 0;
};

/// A row as it is drawn: bars, or if it has none, its use over time.
struct Drawn {
  std::vector<Bar> bars;
  int lanes = 1;
  double height = kRow;
};

class Picture {
 public:
  Picture(const Simulation& simulation, const Schedule& schedule, const Topology& topology,
          const Routes& routes, double size_bytes)
      : simulation_(simulation),
        schedule_(schedule),
        topology_(topology),
        routes_(routes),
        size_bytes_(size_bytes),
        rows_(timeline_rows(simulation, topology, routes, chunk_bytes(schedule, size_bytes),
                            kMostRows)),
        critical_(critical_path(simulation, routes)),
        on_critical_(simulation.timeline.size(), false),
        length_us_(simulation.seconds > 0 ? simulation.seconds * 1e6 : 1) {
    for (const CriticalTransfer& step : critical_) on_critical_[step.entry] = true;
    std::stable_sort(rows_.phases.begin(), rows_.phases.end(),
                     [](const auto& a, const auto& b) { return a.share > b.share; });
    if (rows_.phases.size() > kMostPhases) rows_.phases.resize(kMostPhases);
    lay_out();
  }

  std::string draw() {
    draw_frame();
    draw_axis();
    draw_phases();
    draw_critical_path();
    double top = rows_top_;
    for (std::size_t r = 0; r < rows_.rows.size(); ++r) {
      draw_row(rows_.rows[r], drawn_[r], top);
      if (drawn_[r].bars.empty()) mark_critical(static_cast<int>(r), top + drawn_[r].height);
      top += drawn_[r].height + kGap;
    }
    draw_legend();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), text, std::forward<Args>(args)...);
  }

  [[nodiscard]] const TimelineEntry& entry(std::size_t index) const {
    return simulation_.timeline[index];
  }

  [[nodiscard]] double plot_width() const { return kWidth - kNumbers - left_; }
  [[nodiscard]] double x_of(double time_us) const {
    return left_ + plot_width() * time_us / length_us_;
  }

  [[nodiscard]] const std::vector<int>& path_of(std::size_t index) const {
    const Transfer& transfer = entry(index).transfer;
    return routes_.path(transfer.src, transfer.dst);
  }

  // ---- layout

  void lay_out() {
    std::size_t longest = 14;
    for (const auto& phase : rows_.phases) longest = std::max(longest, phase.label.size());
    for (const auto& row : rows_.rows) longest = std::max(longest, row.label.size());
    left_ = 2 * kMargin + kLetterWidth * static_cast<double>(std::min(longest, kLongestLabel));
    rows_top_ = kTop + static_cast<double>(rows_.phases.size() + 1) * (kStrip + kGap) + 2 * kGap;
    drawn_.resize(rows_.rows.size());
    give_bars();
    const double room = kHeight - kBottom - rows_top_;
    if (shrink_to(room) < kThinnestRow) {
      for (Drawn& drawn : drawn_) drawn = {};
      shrink_to(room);
    }
    bottom_ = rows_top_;
    for (const Drawn& drawn : drawn_) bottom_ += drawn.height + kGap;
  }

  /// Bars for the rows that few transfers cross, if they are few in all.
  void give_bars() {
    if (simulation_.timeline.size() > kMostBars) return;
    std::size_t bars = 0;
    std::vector<LaneStack> stacks(rows_.rows.size());
    for (std::size_t i = 0; i < simulation_.timeline.size(); ++i) {
      std::vector<int> crossed;
      for (const int link : path_of(i)) {
        const std::vector<int>& rows = rows_.rows_of_link[at(link)];
        crossed.insert(crossed.end(), rows.begin(), rows.end());
      }
      std::sort(crossed.begin(), crossed.end());
      crossed.erase(std::unique(crossed.begin(), crossed.end()), crossed.end());
      for (const int row : crossed) {
        drawn_[at(row)].bars.push_back(
            {i, stacks[at(row)].place(entry(i).begin_s, entry(i).end_s)});
      }
    }
    for (std::size_t r = 0; r < drawn_.size(); ++r) {
      drawn_[r].lanes = stacks[r].lanes();
      if (drawn_[r].lanes > kMostLanes || rows_.rows[r].members > 1) drawn_[r] = {};
      bars += drawn_[r].bars.size();
    }
    if (bars <= kMostBars) return;
    for (Drawn& drawn : drawn_) drawn = {};
  }

  /// Gives rows the height that fits into `room`; returns that of one lane.
  double shrink_to(double room) {
    double lanes = 0;
    for (const Drawn& drawn : drawn_) lanes += drawn.lanes;
    const double gaps = kGap * static_cast<double>(drawn_.size());
    const double lane = std::min(kRow, (room - gaps) / std::max(lanes, 1.0));
    for (Drawn& drawn : drawn_) drawn.height = drawn.lanes * lane;
    return lane;
  }

  // ---- frame

  void draw_frame() {
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n",
        kWidth, bottom_ + kBottom);
    put("<defs><pattern id=\"reduce\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"1\" height=\"5\" fill=\"#333\"/></pattern>"
        "</defs>\n");
    put("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    put("<text x=\"{:.0f}\" y=\"26\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", kMargin,
        escaped(fmt::format("{} {} on {}", schedule_.name, name_of(schedule_.collective.kind),
                            topology_.name)));
    put("<text x=\"{:.0f}\" y=\"45\" fill=\"#444\">{}</text>\n", kMargin,
        escaped(fmt::format(
            "{:.0f} bytes, {}, {}, {}, {}: {:.6g} µs simulated", size_bytes_,
            counted(schedule_.world_size, "rank"), counted(schedule_.num_chunks, "chunk"),
            counted(static_cast<long long>(schedule_.steps.size()), "step"),
            counted(static_cast<long long>(simulation_.timeline.size()), "transfer"),
            simulation_.seconds * 1e6)));
    put("<text x=\"{:.0f}\" y=\"62\" fill=\"#444\">{}</text>\n", kMargin,
        escaped(critical_summary()));
    put("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#444\">used, of the time</text>\n",
        kWidth - kNumbers + 8, rows_top_ - 3);
  }

  void draw_axis() {
    const double spacing = tick_spacing(length_us_);
    const auto tick = [&](double time_us, const char* anchor) {
      const double x = x_of(time_us);
      put("<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" stroke=\"#ccc\"/>\n",
          x, kTop - 4, bottom_);
      put("<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"{}\" fill=\"#333\">{:.4g}</text>\n", x,
          bottom_ + 14, anchor, time_us);
    };
    // The end has a label of its own, and none beside it.
    for (int i = 0; i * spacing < length_us_ - spacing / 2; ++i) tick(i * spacing, "middle");
    tick(length_us_, "middle");
    put("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\" fill=\"#333\">time, µs</text>\n",
        left_ + plot_width() / 2, bottom_ + 30);
  }

  void label(std::string_view text, double middle, double size, const char* fill = "#222") {
    put("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\" font-size=\"{:.1f}\" "
        "fill=\"{}\">{}</text>\n",
        left_ - 8, middle + kHalfLetter * size / 11, size, fill, escaped(text));
  }

  void number(std::string_view text, double middle, double size) {
    put("<text x=\"{:.0f}\" y=\"{:.1f}\" font-size=\"{:.1f}\" fill=\"#222\">{}</text>\n",
        kWidth - kNumbers + 8, middle + kHalfLetter * size / 11, size, escaped(text));
  }

  // ---- over time

  /// Cells shaded by `values`, of which 1 is the darkest; equal neighbours are one.
  void draw_cells(const std::vector<double>& values, double top, double height) {
    std::map<std::size_t, std::string> by_shade;
    const double cell = plot_width() / Course::kCells;
    const auto shade_of = [](double value) {
      constexpr double kNothing = 1e-4;
      if (!(value > kNothing)) return kShades.size();
      return std::min(static_cast<std::size_t>(value * kShades.size()), kShades.size() - 1);
    };
    for (std::size_t i = 0; i < values.size();) {
      const std::size_t shade = shade_of(values[i]);
      std::size_t end = i + 1;
      while (end < values.size() && shade_of(values[end]) == shade) ++end;
      if (shade < kShades.size()) {
        fmt::format_to(std::back_inserter(by_shade[shade]), "M{:.1f} {:.1f}h{:.1f}v{:.1f}h-{:.1f}z",
                       left_ + cell * static_cast<double>(i), top,
                       cell * static_cast<double>(end - i), height,
                       cell * static_cast<double>(end - i));
      }
      i = end;
    }
    for (const auto& [shade, path] : by_shade) {
      put("<path fill=\"{}\" d=\"{}\"/>\n", kShades[shade], path);
    }
  }

  void draw_phases() {
    double most = 0;
    std::vector<std::vector<double>> courses;
    for (const TimelinePhase& phase : rows_.phases) {
      courses.push_back(phase.course.rates());
      most = std::max(most, *std::max_element(courses.back().begin(), courses.back().end()));
    }
    double top = kTop;
    for (std::size_t p = 0; p < courses.size(); ++p) {
      for (double& rate : courses[p]) rate /= most > 0 ? most : 1;
      label(rows_.phases[p].label, top + kStrip / 2, 11, "#444");
      number(fmt::format("{:.0f} % of bytes", 100 * rows_.phases[p].share), top + kStrip / 2, 11);
      draw_cells(courses[p], top, kStrip);
      top += kStrip + kGap;
    }
  }

  // ---- critical path

  /// The row of the busiest resource on the way of a transfer; -1 within one node.
  [[nodiscard]] int row_that_limits(std::size_t index) const {
    int row = -1;
    for (const int link : path_of(index)) {
      for (const int candidate : rows_.rows_of_link[at(link)]) {
        if (row < 0 || rows_.rows[at(candidate)].busiest > rows_.rows[at(row)].busiest) {
          row = candidate;
        }
      }
    }
    return row;
  }

  [[nodiscard]] std::string critical_summary() const {
    if (critical_.empty()) return "nothing is sent";
    double latency_us = 0;
    std::map<int, double> bytes_us;
    for (const CriticalTransfer& step : critical_) {
      latency_us += 1e6 * (step.flow_s - step.begin_s);
      bytes_us[row_that_limits(step.entry)] += 1e6 * (step.end_s - step.flow_s);
    }
    std::vector<std::pair<double, int>> order;
    for (const auto& [row, us] : bytes_us) {
      if (row >= 0 && us > 0) order.emplace_back(us, row);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::string text =
        fmt::format("critical path: {} transfer{}, {:.0f} % of its time latency", critical_.size(),
                    critical_.size() == 1 ? "" : "s", 100 * latency_us / length_us_);
    constexpr std::size_t kNamed = 3;
    for (std::size_t i = 0; i < std::min(order.size(), kNamed); ++i) {
      text += fmt::format(", {:.0f} % bytes over {}", 100 * order[i].first / length_us_,
                          rows_.rows[at(order[i].second)].label);
    }
    return text + (order.size() > kNamed ? ", …" : "");
  }

  void draw_critical_path() {
    const double top = kTop + static_cast<double>(rows_.phases.size()) * (kStrip + kGap);
    label("critical path", top + kStrip / 2, 11, "#444");
    for (const CriticalTransfer& step : critical_) {
      const Transfer& t = entry(step.entry).transfer;
      const double begin = x_of(step.begin_s * 1e6), flow = x_of(step.flow_s * 1e6);
      const double end = std::max(x_of(step.end_s * 1e6), begin + 0.5);
      put("<g><title>{}</title>", escaped(title_of(step.entry)));
      put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"#999\"/>",
          begin, top, flow - begin, kStrip);
      put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.0f}\" fill=\"#b3541e\"/>",
          flow, top, end - flow, kStrip);
      constexpr double kTold = 4;  // px: narrower ones keep their colour
      if (end - begin > kTold) {
        put("<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"#fff\"/>",
            end, top, top + kStrip);
      }
      const std::string text = fmt::format("{} → {}", t.src, t.dst);
      if (end - begin > kLetterWidth * static_cast<double>(text.size())) {
        put("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"10\" "
            "fill=\"#fff\">{}</text>",
            (begin + end) / 2, top + kStrip - 3, text);
      }
      put("</g>\n");
    }
  }

  /// Where the critical path goes through a row that has no bars to outline.
  void mark_critical(int row, double bottom) {
    std::string path;
    for (const CriticalTransfer& step : critical_) {
      if (row_that_limits(step.entry) != row) continue;
      const double begin = x_of(step.begin_s * 1e6);
      fmt::format_to(std::back_inserter(path), "M{:.1f} {:.1f}H{:.1f}", begin, bottom + 0.5,
                     std::max(x_of(step.end_s * 1e6), begin + 1));
    }
    if (!path.empty()) put("<path stroke=\"#b3541e\" stroke-width=\"2.5\" d=\"{}\"/>\n", path);
  }

  // ---- resources

  void draw_row(const TimelineRow& row, const Drawn& drawn, double top) {
    const double size = std::min(11.0, drawn.height + 1);
    const double middle = top + drawn.height / 2;
    put("<g class=\"row\" data-members=\"{}\"><title>{}</title>\n", row.members,
        escaped(fmt::format("{}: {}", row.label, row.detail)));
    label(shortened(row.label + (row.slow ? " (slow)" : ""), kLongestLabel), middle, size,
          row.slow ? "#c0161b" : "#222");
    number(row.members == 1
               ? fmt::format("{:.0f} %", 100 * row.use)
               : fmt::format("{:.0f} %, busiest {:.0f} %", 100 * row.use, 100 * row.busiest),
           middle, size);
    put("<line x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", left_,
        kWidth - kNumbers, top + drawn.height + kGap / 2, top + drawn.height + kGap / 2);
    if (drawn.bars.empty()) draw_cells(row.course.rates(), top, drawn.height);
    const double lane = drawn.height / drawn.lanes;
    for (const Bar& bar : drawn.bars) draw_bar(bar, top + bar.lane * lane, lane);
    put("</g>\n");
  }

  [[nodiscard]] std::string title_of(std::size_t index) const {
    const TimelineEntry& e = entry(index);
    return fmt::format("chunk {} from rank {} to rank {}, {}, step {}: {:.6g} to {:.6g} µs",
                       e.transfer.chunk, e.transfer.src, e.transfer.dst,
                       e.transfer.action == Action::reduce ? "reduced" : "copied", e.step,
                       e.begin_s * 1e6, e.end_s * 1e6);
  }

  void draw_bar(const Bar& bar, double y, double lane) {
    const Transfer& transfer = entry(bar.entry).transfer;
    const double x = x_of(entry(bar.entry).begin_s * 1e6);
    const double width = std::max(x_of(entry(bar.entry).end_s * 1e6) - x - 0.5, 0.5);
    const double height = lane - 1;
    const bool critical = on_critical_[bar.entry];
    const auto rectangle = [&](std::string_view fill, std::string_view stroke) {
      put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.1f}\" fill=\"{}\"{}/>", x,
          y + 0.5, width, height, fill, stroke);
    };
    put("<g><title>{}</title>", escaped(title_of(bar.entry)));
    rectangle(colour(transfer.chunk, schedule_.num_chunks),
              critical ? " stroke=\"#000\" stroke-width=\"1.5\"" : "");
    if (transfer.action == Action::reduce && width > 3) rectangle("url(#reduce)", "");
    const std::string text = std::to_string(transfer.chunk);
    if (height > 9 && width > 8.0 * static_cast<double>(text.size()) + 4) {
      put("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"10\" "
          "stroke=\"#fff\" stroke-width=\"2.5\" paint-order=\"stroke\">{}</text>",
          x + width / 2, y + 0.5 + height / 2 + 3.5, text);
    }
    put("</g>\n");
  }

  // ---- legend

  void box(double& x, std::string_view fill, std::string_view text, std::string_view more = "") {
    const double y = bottom_ + 46;
    put("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"12\" fill=\"{}\"{}/>", x, y, fill,
        more);
    if (fill.starts_with("url")) {
      put("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"12\" fill=\"none\" "
          "stroke=\"#999\"/>",
          x, y);
    }
    x += 18;
    words(x, text);
  }

  void words(double& x, std::string_view text) {
    put("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#333\">{}</text>\n", x, bottom_ + 56, text);
    x += kLetterWidth * static_cast<double>(text.size()) + 12;
  }

  void draw_legend() {
    double x = kMargin;
    words(x, "use, and bytes of a phase:");
    words(x, "little");
    x -= 10;
    for (const char* shade : kShades) {
      put("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"16\" height=\"12\" fill=\"{}\"/>", x,
          bottom_ + 46, shade);
      x += 16;
    }
    x += 4;
    words(x, "full");
    box(x, "#b3541e", "critical path");
    const bool bars = std::any_of(drawn_.begin(), drawn_.end(),
                                  [](const Drawn& drawn) { return !drawn.bars.empty(); });
    if (!bars) return;
    box(x, "#fff", "on it", " stroke=\"#000\" stroke-width=\"1.5\"");
    box(x, "url(#reduce)", "reduced");
    words(x, "chunk:");
    const int shown = std::min(schedule_.num_chunks, kLegendChunks);
    for (int i = 0; i < shown; ++i) {
      // With more chunks than places, evenly spaced ones from the first to the last.
      const auto chunk =
          shown > 1
              ? static_cast<int>(static_cast<long>(i) * (schedule_.num_chunks - 1) / (shown - 1))
              : 0;
      box(x, colour(chunk, schedule_.num_chunks), std::to_string(chunk));
    }
  }

  const Simulation& simulation_;
  const Schedule& schedule_;
  const Topology& topology_;
  const Routes& routes_;
  double size_bytes_;
  TimelineRows rows_;
  std::vector<CriticalTransfer> critical_;
  std::vector<bool> on_critical_;
  std::vector<Drawn> drawn_;  // by row
  double length_us_ = 0;
  double left_ = 0;
  double rows_top_ = 0;
  double bottom_ = 0;
  std::string svg_;
};

}  // namespace

std::string timeline_svg(const Simulation& simulation, const Schedule& schedule,
                         const Topology& topology, const Routes& routes, double size_bytes) {
  return Picture(simulation, schedule, topology, routes, size_bytes).draw();
}

}  // namespace chorus
