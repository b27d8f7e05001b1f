#include "perf/report/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "perf/libraries.hpp"
#include "perf/report/statistics.hpp"

namespace chorus::perf {
namespace {

constexpr std::string_view kDash = "—";

/// Columns that UTF-8 text takes on a terminal; no wide characters are used here.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

std::string padded(std::string_view text, std::size_t width, bool left) {
  const std::string space(width - std::min(width, width_of(text)), ' ');
  return left ? std::string(text) + space : space + std::string(text);
}

std::string ratio_text(double ratio) {
  return ratio < 0.095 ? fmt::format("{:.1g}", ratio) : fmt::format("{:.2f}", ratio);
}

/// What identifies a row apart from its library.
using Point = std::tuple<std::string, std::string, int, std::uint64_t, std::string, std::string>;
Point point_of(const Row& row) {
  return {row.collective, row.transport, row.ranks, row.bytes, row.type, row.op};
}

/// Rows of one report by point, in their order.
struct Grouped {
  std::vector<Point> order;
  std::map<Point, std::map<std::string, const Row*>> rows;
};
Grouped grouped(const Report& report) {
  Grouped result;
  for (const Row& row : report.rows) {
    auto& entry = result.rows[point_of(row)];
    if (entry.empty()) result.order.push_back(point_of(row));
    entry[row.library] = &row;
  }
  return result;
}

/// A figure that may be compared: measured, and of a right result.
std::optional<double> valid_p50(const std::map<std::string, const Row*>& rows,
                                const std::string& library) {
  const auto found = rows.find(library);
  if (found == rows.end() || found->second->wrong != 0) return std::nullopt;
  return found->second->p50_us;
}

std::string heading(std::string_view text, Style style) {
  return style == Style::markdown ? fmt::format("**{}**\n\n", text) : fmt::format("# {}\n", text);
}

}  // namespace

std::string render(const Table& table, Style style) {
  std::vector<std::size_t> widths(table.header.size(), 0);
  const auto measure = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(cells[i]));
    }
  };
  measure(table.header);
  for (const auto& row : table.rows) measure(row);
  const bool markdown = style == Style::markdown;
  std::string text;
  const auto line = [&](const std::vector<std::string>& cells) {
    std::string out = markdown ? "|" : "";
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string_view cell = i < cells.size() ? std::string_view(cells[i]) : "";
      const std::string cell_text = padded(cell, widths[i], i < table.left_columns);
      out += markdown ? fmt::format(" {} |", cell_text) : (i == 0 ? "" : "  ") + cell_text;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    text += out + "\n";
  };
  line(table.header);
  if (markdown) {
    text += "|";
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string dashes(widths[i], '-');
      text += i < table.left_columns ? fmt::format(" {} |", dashes)
                                     : fmt::format(" {}: |", dashes.substr(1));
    }
    text += "\n";
  }
  for (const auto& row : table.rows) line(row);
  return text;
}

std::string human_bytes(std::uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB"};
  auto value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 3) {
    value /= 1024;
    ++unit;
  }
  return value == static_cast<double>(static_cast<std::uint64_t>(value))
             ? fmt::format("{:.0f} {}", value, kUnits[unit])
             : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string microseconds(std::optional<double> us) {
  if (!us) return std::string(kDash);
  if (*us < 10) return fmt::format("{:.2f}", *us);
  if (*us < 100) return fmt::format("{:.1f}", *us);
  return fmt::format("{:.0f}", *us);
}

std::string detail_tables(const Report& report, Style style) {
  std::string text;
  for (std::size_t i = 0; i < report.rows.size();) {
    const Row& first = report.rows[i];
    Table table{.header = {"library", "bytes", "count", "type", "op", "p50_us", "p99_us", "algbw",
                           "busbw", "wrong", "idle", "others"},
                .rows = {}};
    for (; i < report.rows.size() && report.rows[i].collective == first.collective &&
           report.rows[i].transport == first.transport;
         ++i) {
      const Row& row = report.rows[i];
      const bool has = row.p50_us.has_value();
      const auto gb = [&](double bw) {
        return has && bw > 0 ? fmt::format("{:.3f}", bw) : std::string(kDash);
      };
      const auto percent = [&](double share) {
        return has ? fmt::format("{:.0f}%", share * 100) : std::string(kDash);
      };
      table.rows.push_back(
          {row.library, std::to_string(row.bytes), std::to_string(row.count), row.type,
           row.op.empty() ? std::string(kDash) : row.op, microseconds(row.p50_us),
           microseconds(row.p99_us), gb(row.algbw), gb(row.busbw),
           has ? std::to_string(row.wrong) : std::string(kDash), percent(row.idle_share),
           percent(row.others_share) + (has && row.others_share > kDisturbedShare ? "!" : "")});
    }
    text += heading(fmt::format("{} over {}, {}", first.collective, first.transport,
                                counted(first.ranks, "rank")),
                    style);
    text += render(table, style) + "\n";
  }
  return text;
}

std::string comparison_table(const Report& report, Style style) {
  const std::vector<std::string> libraries = libraries_of(report.rows);
  if (libraries.size() < 2) return {};
  const std::string& baseline = libraries.front();
  const std::vector<std::string> peers(libraries.begin() + 1, libraries.end());

  Table table{
      .header = {"collective", "over", "size", baseline + " µs"}, .rows = {}, .left_columns = 2};
  for (const std::string& peer : peers) {
    table.header.push_back(peer + " µs");
    table.header.emplace_back("ratio");
  }
  table.header.emplace_back("best peer");
  table.header.emplace_back("ratio to it");

  std::map<std::string, std::vector<double>> ratios;
  std::vector<double> to_best;
  const Grouped groups = grouped(report);
  for (const Point& point : groups.order) {
    const auto& rows = groups.rows.at(point);
    const std::optional<double> mine = valid_p50(rows, baseline);
    const auto& [collective, transport, ranks, bytes, type, op] = point;
    std::vector<std::string> cells = {
        collective, transport, collective == "barrier" ? std::string(kDash) : human_bytes(bytes),
        microseconds(mine)};
    std::optional<double> best;
    std::string best_name(kDash);
    for (const std::string& peer : peers) {
      const std::optional<double> theirs = valid_p50(rows, peer);
      cells.push_back(microseconds(theirs));
      cells.push_back(mine && theirs ? ratio_text(*mine / *theirs) : std::string(kDash));
      if (mine && theirs) ratios[peer].push_back(*mine / *theirs);
      if (theirs && !is_yardstick(peer) && (!best || *theirs < *best)) {
        best = theirs;
        best_name = peer;
      }
    }
    cells.push_back(best_name);
    cells.push_back(mine && best ? ratio_text(*mine / *best) : std::string(kDash));
    if (mine && best) to_best.push_back(*mine / *best);
    table.rows.push_back(std::move(cells));
  }

  std::vector<std::string> means = {"geometric mean", "", "", ""};
  const auto mean_text = [](const std::vector<double>& values) {
    return values.empty() ? std::string(kDash) : ratio_text(geometric_mean(values));
  };
  for (const std::string& peer : peers) {
    means.emplace_back();
    means.push_back(mean_text(ratios[peer]));
  }
  means.emplace_back();
  means.push_back(mean_text(to_best));
  table.rows.push_back(std::move(means));
  return heading(fmt::format("median time in µs, and ratio {}/peer: below 1, {} is faster",
                             baseline, baseline),
                 style) +
         render(table, style);
}

std::string difference_table(const Report& a, const Report& b, Style style, double* mean) {
  Table table{.header = {"collective", "over", "library", "ranks", "size", "a µs", "b µs", "b/a"},
              .rows = {},
              .left_columns = 3};
  const Grouped groups = grouped(b);
  std::vector<double> ratios;
  for (const Row& row : a.rows) {
    const auto found = groups.rows.find(point_of(row));
    if (found == groups.rows.end()) continue;
    const auto other = found->second.find(row.library);
    if (other == found->second.end()) continue;
    const std::optional<double> before = row.wrong == 0 ? row.p50_us : std::nullopt;
    const std::optional<double> now = valid_p50(found->second, row.library);
    std::string ratio(kDash);
    if (before && now) {
      ratios.push_back(*now / *before);
      ratio = ratio_text(ratios.back());
    }
    table.rows.push_back({row.collective, row.transport, row.library, std::to_string(row.ranks),
                          row.collective == "barrier" ? std::string(kDash) : human_bytes(row.bytes),
                          microseconds(before), microseconds(now), ratio});
  }
  if (ratios.empty()) throw InputError("the two files have no measured row in common");
  const double overall = geometric_mean(ratios);
  if (mean != nullptr) *mean = overall;
  table.rows.push_back({"geometric mean", "", "", "", "", "", "", ratio_text(overall)});
  return render(table, style);
}

namespace {

/// "kernel: 6.1.0 on a, b; 6.2.0 on c", for every figure in which the hosts of a job differ.
std::string differences(const std::vector<ReportHost>& hosts, std::string_view mark) {
  using Figure = std::pair<const char*, std::string (*)(const Machine&)>;
  constexpr auto kFigures = std::to_array<Figure>(
      {{"CPU", [](const Machine& m) { return m.cpu; }},
       {"CPUs", [](const Machine& m) { return std::to_string(m.cpus); }},
       {"memory", [](const Machine& m) { return m.memory; }},
       {"kernel", [](const Machine& m) { return m.kernel; }},
       {"system", [](const Machine& m) { return m.system; }},
       {"TCP congestion control", [](const Machine& m) { return m.tcp_congestion_control; }}});
  std::string text;
  for (const auto& [name, figure] : kFigures) {
    std::map<std::string, std::vector<std::string>> values;
    for (const ReportHost& host : hosts) values[figure(host.machine)].push_back(host.name);
    if (values.size() < 2) continue;
    std::vector<std::string> parts;
    for (const auto& [value, names] : values) {
      parts.push_back(fmt::format("{} on {}", value, fmt::join(names, ", ")));
    }
    text += fmt::format("{}hosts differ in {}: {}\n", mark, name, fmt::join(parts, "; "));
  }
  return text;
}

std::string about_job(const Report& report, std::string_view mark) {
  std::string text;
  if (!report.hosts.empty()) {
    std::vector<std::string> names;
    for (const ReportHost& host : report.hosts) {
      names.push_back(fmt::format("{} (rank{} {})", host.name, host.ranks.size() == 1 ? "" : "s",
                                  fmt::join(host.ranks, ",")));
    }
    text += fmt::format("{}{} host{}, started by {}: {}\n", mark, names.size(),
                        names.size() == 1 ? "" : "s", report.launcher, fmt::join(names, ", "));
    text += differences(report.hosts, mark);
  }
  for (const Absent& absent : report.absent) {
    text += fmt::format("{}not measured: {}: {}\n", mark, absent.library, absent.reason);
  }
  return text;
}

}  // namespace

std::string preamble(const Report& report, Style style) {
  const std::string_view mark = style == Style::markdown ? "- " : "# ";
  std::string text =
      fmt::format("{}{}, {}, {}, Linux {}, {}, TCP {}\n", mark, report.machine.cpu,
                  counted(report.machine.cpus, "CPU"), report.machine.memory, report.machine.kernel,
                  report.machine.system, report.machine.tcp_congestion_control);
  text += fmt::format("{}{}, commit {}, {}{}{}{}\n", mark, report.date, report.commit,
                      counted(report.rounds, "round"), report.in_place ? ", in place" : "",
                      report.dirty ? ", buffers rewritten before every iteration" : "",
                      report.offset_bytes == 0
                          ? ""
                          : fmt::format(", buffers {} bytes behind a page", report.offset_bytes));
  text += about_job(report, mark);
  for (const Peer& peer : report.peers) {
    text += fmt::format("{}{} over {}: {}\n", mark, peer.name, peer.transport, peer.version);
  }
  return text;
}

std::string remarks(const Report& report) {
  // Many rows fail for one reason; it is said once.
  std::map<std::tuple<std::string, std::string, std::string>, std::vector<std::string>> missing;
  std::string text;
  int disturbed = 0;
  for (const Row& row : report.rows) {
    const std::string where = fmt::format("{} {}", row.collective, human_bytes(row.bytes));
    if (!row.reason.empty()) missing[{row.library, row.transport, row.reason}].push_back(where);
    if (row.wrong != 0) {
      text += fmt::format("WRONG: {} over {}, {}: {}; {}\n", row.library, row.transport, where,
                          counted(static_cast<long long>(row.wrong), "element"), row.first_wrong);
    }
    if (row.p50_us && row.others_share > kDisturbedShare) ++disturbed;
  }
  for (const auto& [key, places] : missing) {
    const auto& [library, transport, reason] = key;
    text +=
        fmt::format("{} {} over {}: {} [{}{}]\n", kDash, library, transport, reason, places.front(),
                    places.size() > 1 ? fmt::format(" and {} more", places.size() - 1) : "");
  }
  if (disturbed > 0) {
    text += fmt::format(
        "! {} of {}: others used more than {:.0f} % of the machine meanwhile; repeat them on "
        "an idle machine\n",
        disturbed, counted(std::ssize(report.rows), "row"), kDisturbedShare * 100);
  }
  return text;
}

}  // namespace chorus::perf
