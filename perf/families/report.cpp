#include "perf/families/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "chorus/error.hpp"
#include "perf/report/json.hpp"
#include "perf/report/statistics.hpp"

namespace chorus::perf {
namespace {

constexpr std::string_view kFormat = "chorus-perf-families";
constexpr int kFamiliesVersion = 1;
constexpr double kClearly = 1.02;  // times the winner's time: what a clear win is
constexpr std::size_t kMostWorst = 12;
constexpr double kDiffers = 0.01;

Json family_row_json(const FamilyRow& row) {
  Json results = Json::array();
  for (const FamilyResult& result : row.results) {
    results.push_back({{"collective", result.collective},
                       {"bytes", result.bytes},
                       {"share", result.share},
                       {"strategy", result.strategy},
                       {"schedule", result.schedule},
                       {"next_best", result.next_best}});
  }
  return {{"family", row.family},         {"name", row.name},         {"ranks", row.ranks},
          {"cpu_s", row.cpu_s},           {"peak_gib", row.peak_gib}, {"failure", row.failure},
          {"results", std::move(results)}};
}

FamilyRow family_row_from(const Json& json) {
  FamilyRow row{json.at("family").get<std::string>(),
                json.at("name").get<std::string>(),
                json.at("ranks").get<int>(),
                json.at("cpu_s").get<double>(),
                json.at("peak_gib").get<double>(),
                json.at("failure").get<std::string>(),
                {}};
  for (const Json& result : json.at("results")) {
    row.results.push_back(
        {result.at("collective").get<std::string>(), result.at("bytes").get<std::uint64_t>(),
         result.at("share").get<double>(), result.at("strategy").get<std::string>(),
         result.at("schedule").get<std::string>(), result.at("next_best").get<double>()});
    if (!(row.results.back().share > 0)) throw InputError("a share is not positive");
  }
  return row;
}

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

/// "97.1 92.3 80.0": median, fifth percentile, worst.
std::string quantiles(const std::vector<double>& shares) {
  return fmt::format("{} {} {}", percent(median(shares)), percent(percentile(shares, 0.05)),
                     percent(*std::min_element(shares.begin(), shares.end())));
}

/// A column of the table: a collective at a size.
using Column = std::pair<std::string, std::uint64_t>;
using Shares = std::map<Column, std::vector<double>>;

std::vector<Column> columns_of(const FamilyReport& report) {
  std::vector<Column> columns;
  for (const FamilyRow& row : report.rows) {
    for (const FamilyResult& result : row.results) {
      const Column column(result.collective, result.bytes);
      if (std::ranges::find(columns, column) == columns.end()) columns.push_back(column);
    }
  }
  std::ranges::stable_sort(columns, {}, [](const Column& column) { return column.second; });
  return columns;
}

std::vector<std::string> families_of(const FamilyReport& report) {
  std::vector<std::string> names;
  for (const FamilyRow& row : report.rows) {
    if (std::ranges::find(names, row.family) == names.end()) names.push_back(row.family);
  }
  return names;
}

std::string share_table(const FamilyReport& report, Style style) {
  const std::vector<Column> columns = columns_of(report);
  Table table;
  table.header = {"family", "wirings"};
  for (const auto& [collective, bytes] : columns) {
    table.header.push_back(fmt::format("{} {}", collective, human_bytes(bytes)));
  }
  const auto add = [&](const std::string& name, auto wanted) {
    Shares shares;
    int wirings = 0;
    for (const FamilyRow& row : report.rows) {
      if (!wanted(row)) continue;
      ++wirings;
      for (const FamilyResult& result : row.results) {
        shares[{result.collective, result.bytes}].push_back(result.share);
      }
    }
    std::vector<std::string> cells = {name, fmt::format("{}", wirings)};
    for (const Column& column : columns) {
      const auto found = shares.find(column);
      cells.push_back(found == shares.end() ? "-" : quantiles(found->second));
    }
    table.rows.push_back(std::move(cells));
  };
  for (const std::string& family : families_of(report)) {
    add(family, [&](const FamilyRow& row) { return row.family == family; });
  }
  add("all", [](const FamilyRow&) { return true; });
  return "share of the limit in percent: median, fifth percentile, worst\n" + render(table, style);
}

std::string cost_table(const FamilyReport& report, Style style) {
  constexpr std::pair<int, int> kRanges[] = {{1, 64}, {65, 512}, {513, 1 << 30}};
  Table table;
  table.header = {"ranks", "plans", "CPU s median", "CPU s worst", "GiB worst", "failed"};
  for (const auto& [least, most] : kRanges) {
    std::vector<double> cpu_s;
    double gib = 0;
    int failed = 0;
    for (const FamilyRow& row : report.rows) {
      if (row.ranks < least || row.ranks > most) continue;
      cpu_s.push_back(row.cpu_s);
      gib = std::max(gib, row.peak_gib);
      failed += row.failure.empty() ? 0 : 1;
    }
    if (cpu_s.empty()) continue;
    table.rows.push_back({least == 1    ? fmt::format("to {}", most)
                          : most > 1024 ? fmt::format("{} on", least)
                                        : fmt::format("{} to {}", least, most),
                          fmt::format("{}", cpu_s.size()), fmt::format("{:.1f}", median(cpu_s)),
                          fmt::format("{:.1f}", *std::ranges::max_element(cpu_s)),
                          fmt::format("{:.2f}", gib), fmt::format("{}", failed)});
  }
  return render(table, style);
}

std::string winner_table(const FamilyReport& report, Style style) {
  struct Wins {
    int all = 0;
    int clear = 0;
    int alone = 0;
    std::map<std::string, int> families;
  };
  std::map<std::string, Wins> winners;
  for (const FamilyRow& row : report.rows) {
    for (const FamilyResult& result : row.results) {
      Wins& wins = winners[result.strategy];
      ++wins.all;
      wins.clear += result.next_best >= kClearly ? 1 : 0;
      wins.alone += result.next_best == 0 ? 1 : 0;
      ++wins.families[row.family];
    }
  }
  std::vector<std::pair<std::string, Wins>> sorted(winners.begin(), winners.end());
  std::ranges::stable_sort(sorted, std::greater<>(),
                           [](const auto& one) { return one.second.all; });
  Table table;
  table.header = {"strategy", "won", "by 2 %", "unrivalled", "most often in"};
  for (const auto& [name, wins] : sorted) {
    const auto most =
        std::ranges::max_element(wins.families, {}, [](const auto& f) { return f.second; });
    table.rows.push_back({name, fmt::format("{}", wins.all), fmt::format("{}", wins.clear),
                          fmt::format("{}", wins.alone), most->first});
  }
  return render(table, style);
}

std::string worst_table(const FamilyReport& report, Style style) {
  std::vector<std::tuple<double, const FamilyRow*, const FamilyResult*>> all;
  std::uint64_t largest = 0;
  for (const FamilyRow& row : report.rows) {
    for (const FamilyResult& result : row.results) largest = std::max(largest, result.bytes);
  }
  for (const FamilyRow& row : report.rows) {
    for (const FamilyResult& result : row.results) {
      if (result.bytes == largest) all.emplace_back(result.share, &row, &result);
    }
  }
  std::ranges::stable_sort(all, {}, [](const auto& one) { return std::get<0>(one); });
  if (all.size() > kMostWorst) all.resize(kMostWorst);
  Table table;
  table.header = {"worst at " + human_bytes(largest), "ranks", "collective", "%", "strategy"};
  for (const auto& [share, row, result] : all) {
    table.rows.push_back({row->name, fmt::format("{}", row->ranks), result->collective,
                          percent(share), result->strategy});
  }
  return render(table, style);
}

}  // namespace

std::string to_json(const FamilyReport& report) {
  Json rows = Json::array();
  for (const FamilyRow& row : report.rows) rows.push_back(family_row_json(row));
  const Json json = {{"format", kFormat},
                     {"version", kFamiliesVersion},
                     {"date", report.date},
                     {"commit", report.commit},
                     {"command", report.command},
                     {"machine",
                      {{"cpu", report.machine.cpu},
                       {"cpus", report.machine.cpus},
                       {"memory", report.machine.memory},
                       {"kernel", report.machine.kernel},
                       {"system", report.machine.system}}},
                     {"rows", std::move(rows)}};
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

bool is_family_report(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.value("format", "") == kFormat;
}

FamilyReport family_report_from_json(std::string_view text, std::string_view where) try {
  const Json json = Json::parse(text);
  if (!json.is_object() || json.value("format", "") != kFormat) {
    throw InputError(
        "not a record of chorus-perf-synthesis families; give one that its --json wrote");
  }
  if (const int version = json.at("version").get<int>(); version != kFamiliesVersion) {
    throw InputError(fmt::format("version {} of the format, and this program reads version {}",
                                 version, kFamiliesVersion));
  }
  FamilyReport report;
  report.date = json.at("date").get<std::string>();
  report.commit = json.at("commit").get<std::string>();
  report.command = json.at("command").get<std::string>();
  const Json& machine = json.at("machine");
  report.machine.cpu = machine.at("cpu").get<std::string>();
  report.machine.cpus = machine.at("cpus").get<int>();
  report.machine.memory = machine.at("memory").get<std::string>();
  report.machine.kernel = machine.at("kernel").get<std::string>();
  report.machine.system = machine.at("system").get<std::string>();
  for (const Json& row : json.at("rows")) report.rows.push_back(family_row_from(row));
  return report;
} catch (const Json::exception& error) {
  throw InputError(fmt::format("{}: {}", where, error.what()));
} catch (const InputError& error) {
  throw InputError(fmt::format("{}: {}", where, error.what()));
}

std::string family_tables(const FamilyReport& report, Style style) {
  std::string text = share_table(report, style) + "\n" + cost_table(report, style) + "\n" +
                     winner_table(report, style) + "\n" + worst_table(report, style);
  for (const FamilyRow& row : report.rows) {
    if (!row.failure.empty()) text += fmt::format("failed: {}: {}\n", row.name, row.failure);
  }
  return text;
}

std::string family_difference(const FamilyReport& a, const FamilyReport& b, Style style,
                              double* mean) {
  using Key = std::tuple<std::string, std::string, std::uint64_t>;  // wiring, collective, bytes
  std::map<Key, double> before;
  for (const FamilyRow& row : a.rows) {
    for (const FamilyResult& result : row.results) {
      before[{row.name, result.collective, result.bytes}] = result.share;
    }
  }
  std::map<Column, std::pair<std::vector<double>, std::vector<double>>> both;
  std::vector<double> ratios;
  Table changed;
  changed.header = {"wiring", "collective", "bytes", "%", "then %"};
  for (const FamilyRow& row : b.rows) {
    for (const FamilyResult& result : row.results) {
      const auto found = before.find({row.name, result.collective, result.bytes});
      if (found == before.end()) continue;
      auto& [first, second] = both[{result.collective, result.bytes}];
      first.push_back(found->second);
      second.push_back(result.share);
      ratios.push_back(found->second / result.share);
      if (std::abs(ratios.back() - 1) < kDiffers) continue;
      changed.rows.push_back({row.name, result.collective, human_bytes(result.bytes),
                              percent(found->second), percent(result.share)});
    }
  }
  if (ratios.empty()) throw InputError("the two records have no wiring in common");
  *mean = geometric_mean(ratios);
  Table table;
  table.header = {"collective", "wirings", "median, 5th, worst", "then"};
  for (const auto& [column, shares] : both) {
    table.rows.push_back({fmt::format("{} {}", column.first, human_bytes(column.second)),
                          fmt::format("{}", shares.first.size()), quantiles(shares.first),
                          quantiles(shares.second)});
  }
  std::string text =
      render(table, style) +
      fmt::format("\ntimes of the second over the first, geometric mean: {:.4f}\n", *mean);
  if (!changed.rows.empty()) text += "\n" + render(changed, style);
  return text;
}

}  // namespace chorus::perf
