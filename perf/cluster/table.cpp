#include "perf/cluster/table.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "perf/libraries.hpp"
#include "perf/report/statistics.hpp"

namespace chorus::perf {
namespace {

/// Of the time: by cables four times as fast it would be a quarter if cables were the limit, and
/// plans differ from one probe to the next.
constexpr double kCoresShare = 0.5;

/// "16 MiB" for 16777200 bytes, too.
std::string rounded_bytes(std::uint64_t bytes) {
  const double exponent = std::log2(static_cast<double>(bytes));
  const double whole = std::exp2(std::round(exponent));
  const bool is_near = std::abs(static_cast<double>(bytes) / whole - 1) < 0.01;
  return human_bytes(is_near ? static_cast<std::uint64_t>(whole) : bytes);
}

/// The rows of one collective at one size on one cluster, by library.
struct Meeting {
  std::string collective, place;
  std::uint64_t bytes = 0;
  double bound_us = 0;
  bool by_cores = false;
  std::map<std::string, const Row*> rows;
};

/// Sizes are those asked for, which clusters of different numbers of ranks round differently.
std::vector<Meeting> meetings(const Report& report) {
  std::vector<Meeting> all;
  for (const Row& row : report.rows) {
    if (row.bound_us <= 0) continue;
    const bool is_new = all.empty() || all.back().collective != row.collective ||
                        all.back().place != row.transport || all.back().bytes != row.bytes;
    if (is_new) {
      all.push_back({row.collective, row.transport, row.bytes, row.bound_us, false, {}});
    }
    all.back().by_cores = all.back().by_cores || cores_limit(row);
    if (row.p50_us && row.wrong == 0) all.back().rows.emplace(row.library, &row);
  }
  return all;
}

/// "97.1 92.3 80.0": median, fifth percentile from the bad end, worst.
std::string quantiles(std::vector<double> values, bool more_is_worse) {
  if (values.empty()) return "—";
  if (more_is_worse) {
    for (double& value : values) value = -value;
  }
  const double sign = more_is_worse ? -1 : 1;
  return fmt::format("{:.1f} {:.1f} {:.1f}", sign * median(values), sign * percentile(values, 0.05),
                     sign * std::ranges::min(values));
}

/// Percent of the first library's time over the best of the others'.
std::vector<double> over_best(const std::vector<const Meeting*>& some,
                              const std::vector<std::string>& libraries) {
  std::vector<double> ratios;
  for (const Meeting* meeting : some) {
    const auto own = meeting->rows.find(libraries.front());
    if (own == meeting->rows.end()) continue;
    double best = 0;
    for (const auto& [library, row] : meeting->rows) {
      if (library == libraries.front() || is_yardstick(library)) continue;
      if (best == 0 || *row->p50_us < best) best = *row->p50_us;
    }
    if (best > 0) ratios.push_back(100 * *own->second->p50_us / best);
  }
  return ratios;
}

/// Percent between the slowest and the fastest round, of the median.
std::vector<double> spreads(const std::vector<const Meeting*>& some, const std::string& library) {
  std::vector<double> all;
  for (const Meeting* meeting : some) {
    const auto found = meeting->rows.find(library);
    if (found == meeting->rows.end()) continue;
    const auto [least, most] = std::ranges::minmax(found->second->p50_us_by_round);
    all.push_back(100 * (most - least) / *found->second->p50_us);
  }
  return all;
}

std::vector<std::string> share_cells(const std::vector<const Meeting*>& some,
                                     const std::vector<std::string>& libraries, bool spread) {
  std::vector<std::string> cells = {fmt::format("{}", some.size())};
  for (const std::string& library : libraries) {
    std::vector<double> shares;
    for (const Meeting* meeting : some) {
      const auto found = meeting->rows.find(library);
      if (found == meeting->rows.end()) continue;
      shares.push_back(100 * meeting->bound_us / *found->second->p50_us);
    }
    cells.push_back(quantiles(std::move(shares), false));
  }
  if (libraries.size() > 1) cells.push_back(quantiles(over_best(some, libraries), true));
  if (spread) cells.push_back(quantiles(spreads(some, libraries.front()), true));
  return cells;
}

/// Collectives in the order in which they were measured, sizes as whole MiB, KiB or bytes.
std::vector<std::pair<std::string, std::string>> groups_of(const std::vector<Meeting>& all) {
  std::vector<std::pair<std::string, std::string>> groups;
  for (const Meeting& meeting : all) {
    const std::pair group(meeting.collective, rounded_bytes(meeting.bytes));
    if (std::ranges::find(groups, group) == groups.end()) groups.push_back(group);
  }
  return groups;
}

}  // namespace

bool cores_limit(const Row& row) { return row.p50_us && row.faster_us > kCoresShare * *row.p50_us; }

std::string share_table(const Report& report, Style style) {
  const std::vector<Meeting> all = meetings(report);
  std::set<std::string> places;
  bool told_apart = false;
  for (const Meeting& meeting : all) places.insert(meeting.place);
  for (const Row& row : report.rows) told_apart = told_apart || row.faster_us > 0;
  if (places.size() < 3) return {};
  const std::vector<std::string> libraries = libraries_of(report.rows);
  Table table{.header = {"collective", "size", "limit", "clusters"}, .rows = {}, .left_columns = 3};
  for (const std::string& library : libraries) table.header.push_back(library);
  if (libraries.size() > 1) table.header.push_back(libraries.front() + " over best peer");
  const bool spread = report.rounds > 1;
  if (spread) table.header.push_back("spread of " + libraries.front());
  const auto add = [&](const std::string& limit, bool cables_only) {
    std::vector<const Meeting*> every;
    const auto row = [&](const std::string& collective, const std::string& size,
                         const std::vector<const Meeting*>& some) {
      std::vector<std::string> cells = {collective, size, limit};
      const std::vector<std::string> more = share_cells(some, libraries, spread);
      cells.insert(cells.end(), more.begin(), more.end());
      table.rows.push_back(std::move(cells));
    };
    for (const auto& [collective, size] : groups_of(all)) {
      std::vector<const Meeting*> some;
      for (const Meeting& meeting : all) {
        if (meeting.collective != collective || rounded_bytes(meeting.bytes) != size) continue;
        if (!cables_only || !meeting.by_cores) some.push_back(&meeting);
      }
      every.insert(every.end(), some.begin(), some.end());
      row(collective, size, some);
    }
    row("all", "", every);
  };
  add(told_apart ? "any" : "", false);
  if (told_apart) add("cables", true);
  const std::string title = fmt::format(
      "percent over {} clusters: median, 5th percentile, worst; of the bound, of the "
      "best peer's time, of the median of the rounds",
      places.size());
  return (style == Style::markdown ? "\n**" + title + "**\n\n" : "\n# " + title + "\n") +
         render(table, style);
}

std::string bound_table(const Report& report, Style style) {
  const std::vector<std::string> libraries = libraries_of(report.rows);
  Table table{.header = {"collective", "over", "size", "bound ms"}, .rows = {}, .left_columns = 2};
  const auto was_faster = [](const Row& row) { return row.faster_us > 0; };
  const bool faster = std::ranges::any_of(report.rows, was_faster);
  if (faster) table.header.push_back(fmt::format("{} times as fast ms", kFasterCables));
  for (const std::string& library : libraries) {
    table.header.push_back(library + " ms");
    table.header.emplace_back("of bound");
  }
  const auto key = [](const Row& row) {
    return std::tie(row.collective, row.transport, row.bytes);
  };
  for (std::size_t i = 0; i < report.rows.size();) {
    const Row& first = report.rows[i];
    std::size_t end = i;
    while (end < report.rows.size() && key(report.rows[end]) == key(first)) ++end;
    if (first.bound_us > 0) {
      std::vector<std::string> cells = {first.collective, first.transport, human_bytes(first.bytes),
                                        fmt::format("{:.4g}", first.bound_us / 1000)};
      if (faster) {
        const std::span rows(&first, end - i);
        const auto row = std::ranges::find_if(rows, was_faster);
        cells.push_back(row == rows.end() ? "—"
                                          : fmt::format("{:.4g}{}", row->faster_us / 1000,
                                                        cores_limit(*row) ? "!" : ""));
      }
      for (const std::string& library : libraries) {
        const auto row = std::find_if(&report.rows[i], &report.rows[0] + end,
                                      [&](const Row& r) { return r.library == library; });
        const bool has = row != &report.rows[0] + end && row->p50_us && row->wrong == 0;
        cells.push_back(has ? fmt::format("{:.4g}", *row->p50_us / 1000) : "—");
        cells.push_back(has ? fmt::format("{:.1f}%", 100 * row->bound_us / *row->p50_us) : "—");
      }
      table.rows.push_back(std::move(cells));
    }
    i = end;
  }
  if (table.rows.empty()) return {};
  const std::string title = fmt::format(
      "median time in ms, and the share of it that the cables need{}",
      faster ? fmt::format("; Chorus' time by cables {} times as fast (! more than half: cores are "
                           "the limit)",
                           kFasterCables)
             : "");
  return (style == Style::markdown ? "\n**" + title + "**\n\n" : "\n# " + title + "\n") +
         render(table, style);
}

}  // namespace chorus::perf
