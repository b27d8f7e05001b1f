#include "perf/plot.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "chorus/error.hpp"
#include "perf/process.hpp"

namespace chorus::perf {
namespace {

/// Told apart by the colour-blind too (Okabe and Ito); the first library is drawn thicker.
constexpr std::array kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"};
constexpr int kPanelHeight = 340;
constexpr int kWidth = 1160;

using Panel = std::pair<std::string, std::string>;  // collective, transport

std::string quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

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

}  // namespace

std::string gnuplot_script(const Report& report, const std::string& svg_path) {
  const Curves curves = curves_of(report);
  if (curves.panels.empty()) {
    throw InputError("nothing to draw: a plot needs at least two sizes of one collective");
  }
  const std::vector<std::string> libraries = libraries_of(report.rows);
  const int rows = static_cast<int>(curves.panels.size());
  int ranks = 0;
  for (const Row& row : report.rows) ranks = std::max(ranks, row.ranks);
  const int height = 70 + kPanelHeight * rows;

  std::string script = fmt::format(
      "set terminal svg size {},{} dynamic enhanced font 'Helvetica,13' background '#ffffff'\n"
      "set output {}\nset encoding utf8\n",
      kWidth, height, quoted(svg_path));
  for (std::size_t p = 0; p < curves.panels.size(); ++p) {
    for (std::size_t l = 0; l < libraries.size(); ++l) {
      script += fmt::format("{} << EOD\n", block_name(p, l));
      const auto& points = curves.points.at(curves.panels[p]);
      if (const auto found = points.find(libraries[l]); found != points.end()) {
        for (const Row* row : found->second) {
          script += fmt::format("{} {:.6g} {:.6g}\n", row->bytes, *row->p50_us, row->busbw);
        }
      }
      script += "EOD\n";
    }
  }
  const double header = 46.0 / height;
  script += fmt::format(
      "set multiplot layout {},2 margins 0.085,0.985,{:.4f},{:.4f} spacing 0.075,{:.4f} "
      "title {} font ',15' offset 0,-0.2\n",
      rows, 62.0 / height, 1 - header - 24.0 / height, 96.0 / height,
      quoted(fmt::format("{} ranks on {} CPUs ({}), {}", ranks, report.machine.cpus,
                         report.machine.cpu, report.date.substr(0, 10))));
  script +=
      "set border 3 lc rgb '#666666'\nset tics nomirror out textcolor rgb '#333333'\n"
      "set grid lc rgb '#dddddd' lw 1\nset logscale x 2\nset key left top Left reverse samplen 2 "
      "noenhanced\n"
      "set xtics ('4 B' 4, '64 B' 64, '1 KiB' 1024, '16 KiB' 16384, '256 KiB' 262144, "
      "'4 MiB' 4194304, '64 MiB' 67108864, '1 GiB' 1073741824)\n"
      "set xlabel 'size' offset 0,0.6\n";
  for (std::size_t p = 0; p < curves.panels.size(); ++p) {
    const auto& [collective, transport] = curves.panels[p];
    const auto& points = curves.points.at(curves.panels[p]);
    const auto plot = [&](int column) {
      std::string text = "plot ";
      bool first = true;
      for (std::size_t l = 0; l < libraries.size(); ++l) {
        if (!points.contains(libraries[l])) continue;
        text +=
            fmt::format("{}{} using 1:{} with linespoints pt 7 ps {} lw {} lc rgb '{}' title {}",
                        first ? "" : ", ", block_name(p, l), column, l == 0 ? 0.55 : 0.4,
                        l == 0 ? 2.8 : 1.6, kColors[l % kColors.size()], quoted(libraries[l]));
        first = false;
      }
      return text + "\n";
    };
    script += fmt::format("set title {} noenhanced\n",
                          quoted(fmt::format("{} over {}: median time", collective, transport)));
    script +=
        "set logscale y 10\nset ytics ('10 ns' 0.01, '100 ns' 0.1, '1 µs' 1, '10 µs' 10, "
        "'100 µs' 100, '1 ms' 1e3, '10 ms' 1e4, '100 ms' 1e5, '1 s' 1e6, '10 s' 1e7)\n"
        "unset ylabel\nset yrange [*:*]\n";
    script += plot(2);
    script += fmt::format("set title {} noenhanced\n",
                          quoted(fmt::format("{} over {}: bus bandwidth", collective, transport)));
    script +=
        "unset logscale y\nset ytics autofreq\nset ylabel 'GB/s' offset 1,0\nset yrange [0:*]\n";
    script += plot(3);
  }
  return script + "unset multiplot\n";
}

void draw_svg(const Report& report, const std::string& svg_path) {
  const std::string script = gnuplot_script(report, svg_path);
  const Scratch scratch;
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
}

}  // namespace chorus::perf
