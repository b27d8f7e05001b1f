#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "model/contract.hpp"
#include "model/timeline.hpp"
#include "model/timeline_lanes.hpp"

namespace chorus {
namespace {

// All lengths in px.
constexpr double kLetterWidth = 6.4;  // of a label, on average
constexpr double kPlotWidth = 1000;
constexpr double kLaneHeight = 14;  // of few lanes; many share kRowHeight
constexpr double kRowHeight = 84;
constexpr double kThinnestLane = 1.5;
constexpr double kRowGap = 4;
constexpr double kTop = 64;
constexpr double kMargin = 20;
constexpr int kLegendChunks = 16;

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

/// Few chunks: hues as far apart as they can be. Many: a wheel in order, so that neighbours look
/// alike and a wave of chunks is seen as a wave.
std::string colour(ChunkId chunk, int num_chunks) {
  const double turn = static_cast<double>(chunk) / std::max(num_chunks, 1);
  const double lightness = chunk % 2 == 0 ? 52 : 64;
  return fmt::format("hsl({:.1f},62%,{:.0f}%)", 360 * turn, lightness);
}

/// 1, 2 or 5 times a power of ten, so that about ten ticks cover `length`.
double tick_spacing(double length) {
  const double rough = length / 10;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

struct Bar {
  const TimelineEntry* entry = nullptr;
  int lane = 0;
};

struct Row {
  std::string label;
  std::vector<Bar> bars;
  LaneStack stack;

  void add(const TimelineEntry& entry) {
    bars.push_back({&entry, stack.place(entry.begin_s, entry.end_s)});
  }
  [[nodiscard]] double lane_height() const {
    return std::clamp(kRowHeight / stack.lanes(), kThinnestLane, kLaneHeight);
  }
  [[nodiscard]] double height() const {
    return std::max(stack.lanes() * lane_height(), kLaneHeight);
  }
};

std::string name_of_node(const Topology& topology, int node) {
  return topology.nodes[static_cast<std::size_t>(node)].name;
}

std::vector<Row> rows_of(const Simulation& simulation, const Topology& topology,
                         const Routes& routes, TimelineRows kind) {
  std::map<std::pair<int, int>, Row> rows;  // in the order of the picture
  for (const TimelineEntry& entry : simulation.timeline) {
    const Transfer& transfer = entry.transfer;
    if (kind == TimelineRows::rank_pairs) {
      Row& row = rows[{transfer.src, transfer.dst}];
      row.label = fmt::format("{} → {}", transfer.src, transfer.dst);
      row.add(entry);
      continue;
    }
    for (const int index : routes.path(transfer.src, transfer.dst)) {
      const Topology::Link& link = topology.links[static_cast<std::size_t>(index)];
      Row& row = rows[{index, 0}];
      row.label = fmt::format("{} → {}", name_of_node(topology, link.src),
                              name_of_node(topology, link.dst));
      row.add(entry);
    }
  }
  std::vector<Row> ordered;
  ordered.reserve(rows.size());
  for (auto& [key, row] : rows) ordered.push_back(std::move(row));
  return ordered;
}

class Picture {
 public:
  Picture(const Simulation& simulation, const Schedule& schedule, const Topology& topology,
          std::vector<Row> rows)
      : schedule_(schedule), rows_(std::move(rows)), length_us_(simulation.seconds * 1e6) {
    if (!(length_us_ > 0)) length_us_ = 1;
    bottom_ = kTop;
    std::size_t longest = 10;
    for (const Row& row : rows_) longest = std::max(longest, row.label.size());
    label_width_ = kMargin + kLetterWidth * static_cast<double>(longest);
    for (const Row& row : rows_) bottom_ += row.height() + kRowGap;
    draw_frame(simulation, topology);
    draw_axis();
    double top = kTop;
    for (const Row& row : rows_) {
      draw_row(row, top);
      top += row.height() + kRowGap;
    }
    draw_legend();
    svg_ += "</svg>\n";
  }

  std::string take() { return std::move(svg_); }

 private:
  template <class... Args>
  void put(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(svg_), text, std::forward<Args>(args)...);
  }

  [[nodiscard]] double x_of(double time_us) const {
    return label_width_ + kPlotWidth * time_us / length_us_;
  }

  void draw_frame(const Simulation& simulation, const Topology& topology) {
    const double width = label_width_ + kPlotWidth + 2 * kMargin;
    put("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
        "viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"11\">\n",
        width, bottom_ + 96);
    put("<defs><pattern id=\"reduce\" width=\"4\" height=\"4\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"1.2\" height=\"4\" fill=\"#000\" "
        "fill-opacity=\"0.45\"/></pattern></defs>\n");
    put("<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n");
    put("<text x=\"{:.0f}\" y=\"24\" font-size=\"15\" font-weight=\"bold\">{}</text>\n", kMargin,
        escaped(fmt::format("{} {} on {}", schedule_.name, name_of(schedule_.collective.kind),
                            topology.name)));
    put("<text x=\"{:.0f}\" y=\"42\" fill=\"#555\">{}</text>\n", kMargin,
        escaped(fmt::format("{} ranks, {} chunks, {} steps, {} transfers, {:.6g} µs",
                            schedule_.world_size, schedule_.num_chunks, schedule_.steps.size(),
                            simulation.timeline.size(), simulation.seconds * 1e6)));
  }

  void draw_axis() {
    const double spacing = tick_spacing(length_us_);
    for (int tick = 0; tick * spacing <= length_us_ * (1 + 1e-9); ++tick) {
      const double x = x_of(tick * spacing);
      put("<line x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"{1:.0f}\" y2=\"{2:.0f}\" stroke=\"#ddd\"/>\n",
          x, kTop - 4, bottom_);
      put("<text x=\"{:.2f}\" y=\"{:.0f}\" text-anchor=\"middle\" fill=\"#333\">{:.6g}</text>\n", x,
          bottom_ + 14, tick * spacing);
    }
    put("<text x=\"{:.0f}\" y=\"{:.0f}\" text-anchor=\"middle\" fill=\"#333\">time, µs</text>\n",
        label_width_ + kPlotWidth / 2, bottom_ + 30);
  }

  void draw_row(const Row& row, double top) {
    put("<text x=\"{:.0f}\" y=\"{:.1f}\" text-anchor=\"end\" fill=\"#333\">{}</text>\n",
        label_width_ - 8, top + row.height() / 2 + 4, escaped(row.label));
    put("<line x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#eee\"/>\n",
        label_width_, label_width_ + kPlotWidth, top + row.height() + kRowGap / 2,
        top + row.height() + kRowGap / 2);
    for (const Bar& bar : row.bars) draw_bar(bar, top, row.lane_height());
  }

  void draw_bar(const Bar& bar, double top, double lane_height) {
    const Transfer& transfer = bar.entry->transfer;
    const bool reduce = transfer.action == Action::reduce;
    const double begin_us = bar.entry->begin_s * 1e6;
    const double end_us = bar.entry->end_s * 1e6;
    const double x = x_of(begin_us);
    const double width = std::max(x_of(end_us) - x, 0.5);
    const double y = top + bar.lane * lane_height;
    const double height = lane_height - std::min(1.0, lane_height / 4);
    put("<g><title>{}</title>",
        escaped(fmt::format("chunk {} from rank {} to rank {}, {}, step {}: {:.6g} to {:.6g} µs",
                            transfer.chunk, transfer.src, transfer.dst,
                            reduce ? "reduced" : "copied", bar.entry->step, begin_us, end_us)));
    put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.2f}\" fill=\"{}\" "
        "stroke=\"#fff\" stroke-width=\"0.5\"/>",
        x, y, width, height, colour(transfer.chunk, schedule_.num_chunks));
    if (reduce && width > 3) {
      put("<rect x=\"{:.2f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{:.2f}\" "
          "fill=\"url(#reduce)\"/>",
          x, y, width, height);
    }
    const std::string label = std::to_string(transfer.chunk);
    if (height > 10 && width > 8.0 * static_cast<double>(label.size()) + 4) {
      put("<text x=\"{:.2f}\" y=\"{:.1f}\" text-anchor=\"middle\" font-size=\"10\" "
          "stroke=\"#fff\" stroke-width=\"2.5\" paint-order=\"stroke\">{}</text>",
          x + width / 2, y + 10, label);
    }
    put("</g>\n");
  }

  void draw_legend() {
    const double y = bottom_ + 52;
    const int shown = std::min(schedule_.num_chunks, kLegendChunks);
    put("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#333\">chunk</text>\n", kMargin, y + 10);
    double x = kMargin + 44;
    for (int i = 0; i < shown; ++i) {
      // With more chunks than places, evenly spaced ones from the first to the last.
      const int chunk =
          shown > 1
              ? static_cast<int>(static_cast<long>(i) * (schedule_.num_chunks - 1) / (shown - 1))
              : 0;
      put("<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"14\" height=\"12\" fill=\"{}\"/>\n", x, y,
          colour(chunk, schedule_.num_chunks));
      put("<text x=\"{:.0f}\" y=\"{:.0f}\" fill=\"#333\">{}</text>\n", x + 18, y + 10, chunk);
      x += 30 + 7.0 * static_cast<double>(std::to_string(chunk).size());
    }
    put("<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"14\" height=\"12\" fill=\"#bbb\"/>"
        "<text x=\"{2:.0f}\" y=\"{3:.0f}\" fill=\"#333\">copied</text>\n",
        x + 16, y, x + 34, y + 10);
    put("<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"14\" height=\"12\" fill=\"#bbb\"/>"
        "<rect x=\"{0:.0f}\" y=\"{1:.0f}\" width=\"14\" height=\"12\" fill=\"url(#reduce)\"/>"
        "<text x=\"{2:.0f}\" y=\"{3:.0f}\" fill=\"#333\">reduced</text>\n",
        x + 84, y, x + 102, y + 10);
  }

  const Schedule& schedule_;
  std::vector<Row> rows_;
  double length_us_ = 0;
  double label_width_ = 0;
  double bottom_ = 0;
  std::string svg_;
};

}  // namespace

std::string timeline_svg(const Simulation& simulation, const Schedule& schedule,
                         const Topology& topology, const Routes& routes, TimelineRows rows) {
  return Picture(simulation, schedule, topology, rows_of(simulation, topology, routes, rows))
      .take();
}

}  // namespace chorus
