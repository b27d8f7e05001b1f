#include "perf/report/plot.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/counted.hpp"
#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "perf/process.hpp"
#include "perf/report/table.hpp"

namespace chorus::perf {
namespace {

/// Told apart by the colour-blind too (Okabe and Ito); the first library is drawn thicker.
constexpr std::array kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};
// A page, px. Each panel is a pair of plots: time beside bandwidth.
constexpr int kMostWidth = 1400;
constexpr int kMostHeight = 1400;
constexpr int kHeaderHeight = 84;  // title and legend
constexpr int kLegendAt = 54;
constexpr int kMostPlotHeight = 300;
constexpr int kLeastPlotHeight = 150;
constexpr int kMostPlotWidth = 580;
constexpr int kLeftOfPlot = 72;   // "100 ms"
constexpr int kRightOfPlot = 34;  // half of "256 MiB"
constexpr int kAbovePlot = 26;
constexpr int kBelowPlot = 40;
constexpr int kTickLabel = 62;
constexpr int kTimeColumn = 2;  // of the data; bandwidth follows

using Panel = std::pair<std::string, std::string>;  // collective, transport

/// The panels worth drawing, in the order of the rows, and each one's points by library.
struct Curves {
  std::vector<Panel> panels;
  std::map<Panel, std::map<std::string, std::vector<const Row*>>> points;
};

Curves curves_of(const Report& report) {
  Curves curves;
  for (const Row& row : report.rows) {
    if (!row.p50_us || row.wrong != 0 || row.bytes == 0) continue;
    const Panel panel{row.collective, row.transport};
    auto& libraries = curves.points[panel];
    if (libraries.empty()) curves.panels.push_back(panel);
    libraries[row.library].push_back(&row);
  }
  std::erase_if(curves.panels, [&](const Panel& panel) {
    const auto& libraries = curves.points[panel];
    return std::none_of(libraries.begin(), libraries.end(),
                        [](const auto& entry) { return entry.second.size() >= 2; });
  });
  return curves;
}

std::string block_name(std::size_t panel, std::size_t library) {
  return fmt::format("$p{}_{}", panel, library);
}

/// How the plots stand on the page.
struct Page {
  int columns = 2;
  int rows = 1;
  int plot_width = kMostPlotWidth;  ///< with its labels
  int plot_height = kMostPlotHeight;

  [[nodiscard]] int width() const { return columns * plot_width; }
  [[nodiscard]] int height() const { return kHeaderHeight + rows * plot_height; }
};

/// As few columns as let all plots be large enough to read. Throws InputError if none do.
Page page_for(int panels) {
  constexpr int kMostColumns = 6;
  constexpr int kMostRows = (kMostHeight - kHeaderHeight) / kLeastPlotHeight;
  constexpr int kRoomyRows = (kMostHeight - kHeaderHeight) / 210;
  Page page;
  const auto rows_of = [&](int columns) { return (2 * panels + columns - 1) / columns; };
  while (page.columns < kMostColumns && rows_of(page.columns) > kRoomyRows) page.columns += 2;
  page.rows = rows_of(page.columns);
  if (page.rows > kMostRows) {
    throw InputError(fmt::format(
        "{} benchmarks times transports are too many for one page: at most {} are drawn; name "
        "fewer, or draw them by chorus-perf show from results of their own",
        panels, kMostRows * kMostColumns / 2));
  }
  page.plot_width = std::min(kMostPlotWidth, kMostWidth / page.columns);
  page.plot_height = std::min(kMostPlotHeight, (kMostHeight - kHeaderHeight) / page.rows);
  return page;
}

/// 1, 2 or 5 times a power of ten, so that some four ticks reach `largest`.
double tick_spacing(double largest) {
  const double rough = largest / 4;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

/// Sizes as ticks: the first and the last have labels, and as many between as have room.
std::string size_ticks(const std::set<std::uint64_t>& sizes, int plot_width) {
  const double least = std::log2(static_cast<double>(*sizes.begin()));
  const double most = std::log2(static_cast<double>(*sizes.rbegin()));
  const int room = plot_width - kLeftOfPlot - kRightOfPlot;
  const double apart = std::max(most - least, 1e-9) * kTickLabel / room;
  std::string ticks;
  double last = least - 2 * apart;
  for (const std::uint64_t size : sizes) {
    const double at = std::log2(static_cast<double>(size));
    const bool is_end = size == *sizes.rbegin();
    const bool named = is_end || (at - last >= apart && most - at >= apart);
    if (named) last = at;
    ticks +=
        fmt::format("{}'{}' {}", ticks.empty() ? "" : ", ", named ? human_bytes(size) : "", size);
  }
  return fmt::format("set xtics ({})\nset xrange [{}:{}]\n", ticks,
                     static_cast<double>(*sizes.begin()) / 1.2,
                     static_cast<double>(*sizes.rbegin()) * 1.2);
}

/// Whole decades around the times, so that both ends have a label.
std::string time_axis(double least_us, double most_us) {
  const int from = static_cast<int>(std::floor(std::log10(least_us) + 1e-9));
  const int to = std::max(from + 1, static_cast<int>(std::ceil(std::log10(most_us) - 1e-9)));
  constexpr std::array kUnits = {"ns", "µs", "ms", "s"};
  std::string ticks;
  for (int decade = from; decade <= to; ++decade) {
    const int in_ns = decade + 3;
    const int unit = std::clamp(in_ns >= 0 ? in_ns / 3 : 0, 0, 3);
    ticks +=
        fmt::format("{}'{:g} {}' 1e{}", ticks.empty() ? "" : ", ", std::pow(10, in_ns - 3 * unit),
                    kUnits[static_cast<std::size_t>(unit)], decade);
  }
  return fmt::format("set logscale y 10\nset yrange [1e{}:1e{}]\nset ytics ({})\n", from, to,
                     ticks);
}

std::string bandwidth_axis(double most) {
  if (!(most > 0)) most = 1;
  const double spacing = tick_spacing(most);
  return fmt::format("unset logscale y\nset yrange [0:{0:g}]\nset ytics 0,{1:g},{0:g}\n",
                     spacing * std::ceil(most / spacing - 1e-9), spacing);
}

std::string look_of(std::size_t library) {
  return fmt::format("with linespoints pt 7 ps {} lw {} lc rgb '{}'", library == 0 ? 0.55 : 0.4,
                     library == 0 ? 2.8 : 1.6, kColors[library % kColors.size()]);
}

/// One for the page, above all plots: names in the colours of their curves. It belongs to the
/// first plot.
std::string legend(const std::vector<std::string>& libraries, const Page& page) {
  constexpr double kLetter = 8, kApart = 40;
  double width = -kApart;
  for (const std::string& name : libraries) {
    width += kLetter * static_cast<double>(name.size() + 2) + kApart;
  }
  double x = (page.width() - width) / 2;
  std::string script;
  for (std::size_t l = 0; l < libraries.size(); ++l) {
    script += fmt::format(
        "set label {} {} at screen {:.4f},{:.4f} left font ',13' tc rgb '{}' noenhanced\n", l + 1,
        quote("● " + libraries[l]), x / page.width(),
        1 - static_cast<double>(kLegendAt) / page.height(), kColors[l % kColors.size()]);
    x += kLetter * static_cast<double>(libraries[l].size() + 2) + kApart;
  }
  return script;
}

/// One panel's data, and its two plots.
class PanelScript {
 public:
  PanelScript(const Curves& curves, std::size_t panel, const std::vector<std::string>& libraries)
      : panel_(panel),
        title_(fmt::format("{} over {}", curves.panels[panel].first, curves.panels[panel].second)),
        libraries_(libraries),
        points_(curves.points.at(curves.panels[panel])) {}

  [[nodiscard]] std::string data() const {
    std::string script;
    for (std::size_t l = 0; l < libraries_.size(); ++l) {
      script += fmt::format("{} << EOD\n", block_name(panel_, l));
      if (const auto found = points_.find(libraries_[l]); found != points_.end()) {
        for (const Row* row : found->second) {
          script += fmt::format("{} {:.6g} {:.6g}\n", row->bytes, *row->p50_us, row->busbw);
        }
      }
      script += "EOD\n";
    }
    return script;
  }

  [[nodiscard]] std::string plots(const Page& page) const {
    std::set<std::uint64_t> sizes;
    double least_us = 1e300, most_us = 0, most_busbw = 0;
    for (const auto& [library, rows] : points_) {
      for (const Row* row : rows) {
        sizes.insert(row->bytes);
        least_us = std::min(least_us, *row->p50_us);
        most_us = std::max(most_us, *row->p50_us);
        most_busbw = std::max(most_busbw, row->busbw);
      }
    }
    return size_ticks(sizes, page.plot_width) + time_axis(least_us, most_us) +
           plot(page.columns < 6 ? "median time" : "time", kTimeColumn) +
           bandwidth_axis(most_busbw) +
           plot(page.columns < 6 ? "bus bandwidth, GB/s" : "GB/s", kTimeColumn + 1);
  }

 private:
  [[nodiscard]] std::string plot(std::string_view what, int column) const {
    std::string text;
    for (std::size_t l = 0; l < libraries_.size(); ++l) {
      if (!points_.contains(libraries_[l])) continue;
      text += fmt::format("{}{} using 1:{} {} notitle", text.empty() ? "" : ", ",
                          block_name(panel_, l), column, look_of(l));
    }
    return fmt::format("set title {} noenhanced\nplot {}\nunset label\n",
                       quote(fmt::format("{}: {}", title_, what)), text);
  }

  std::size_t panel_;
  std::string title_;
  const std::vector<std::string>& libraries_;
  const std::map<std::string, std::vector<const Row*>>& points_;
};

}  // namespace

std::string quote(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

std::string gnuplot_script(const Report& report, const std::string& svg_path) {
  const Curves curves = curves_of(report);
  if (curves.panels.empty()) {
    throw InputError("nothing to draw: a plot needs at least two sizes of one collective");
  }
  std::vector<std::string> libraries = libraries_of(report.rows);
  std::erase_if(libraries, [&](const std::string& library) {
    return std::none_of(curves.panels.begin(), curves.panels.end(), [&](const Panel& panel) {
      return curves.points.at(panel).contains(library);
    });
  });
  const Page page = page_for(static_cast<int>(curves.panels.size()));
  int ranks = 0;
  for (const Row& row : report.rows) ranks = std::max(ranks, row.ranks);

  std::string script = fmt::format(
      "set terminal svg size {},{} dynamic enhanced font 'Helvetica,{}' background '#ffffff'\n"
      "set output {}\nset encoding utf8\n",
      page.width(), page.height(), page.columns == 2 ? 13 : 11, quote(svg_path));
  std::vector<PanelScript> panels;
  for (std::size_t p = 0; p < curves.panels.size(); ++p) {
    panels.emplace_back(curves, p, libraries);
    script += panels.back().data();
  }
  const auto share_x = [&](int px) { return static_cast<double>(px) / page.width(); };
  const auto share_y = [&](int px) { return static_cast<double>(px) / page.height(); };
  script += fmt::format(
      "set multiplot layout {},{} margins {:.4f},{:.4f},{:.4f},{:.4f} spacing {:.4f},{:.4f} "
      "title {} noenhanced font ',15' offset 0,-0.2\n",
      page.rows, page.columns, share_x(kLeftOfPlot), 1 - share_x(kRightOfPlot), share_y(kBelowPlot),
      1 - share_y(kHeaderHeight + kAbovePlot), share_x(kLeftOfPlot + kRightOfPlot),
      share_y(kAbovePlot + kBelowPlot),
      quote(fmt::format("{} on {} ({}), {}", counted(ranks, "rank"),
                        counted(report.machine.cpus, "CPU"), report.machine.cpu,
                        report.date.substr(0, 10))));
  script +=
      "set border 3 lc rgb '#666666'\nset tics nomirror out textcolor rgb '#333333'\n"
      "set grid lc rgb '#dddddd' lw 1\nset logscale x 2\nset title offset 0,-0.5\n"
      "unset key\n";
  script += legend(libraries, page);
  for (const PanelScript& panel : panels) script += panel.plots(page);
  return script + "unset multiplot\n";
}

void draw_svg(const Report& report, const std::string& svg_path) {
  draw_svg([&](const std::string& picture) { return gnuplot_script(report, picture); }, svg_path);
}

void draw_svg(const std::function<std::string(const std::string&)>& script_for,
              const std::string& svg_path) {
  const Scratch scratch;
  const std::string picture = scratch.path() + "/plot.svg";
  const std::string script = script_for(picture);
  const std::string file = scratch.path() + "/plot.gp";
  write_file(file, script);
  Child gnuplot({.argv = {"gnuplot", file}, .environment = {}, .cpu = -1});
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (gnuplot.ended().empty()) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw InputError("gnuplot did not finish within 30 s");
    }
    gnuplot.drain();
    ::poll(nullptr, 0, 10);
  }
  gnuplot.drain();
  if (gnuplot.ended() == "exited with 127") {
    throw InputError("gnuplot is needed for --svg and was not found; install gnuplot-nox");
  }
  if (gnuplot.ended() != "exited with 0") {
    throw InputError(fmt::format("gnuplot {}: {}", gnuplot.ended(), gnuplot.output()));
  }
  write_output(svg_path, read_file(picture));
}

}  // namespace chorus::perf
