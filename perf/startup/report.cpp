#include <fmt/format.h>

#include <algorithm>

#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "perf/report/json.hpp"
#include "perf/report/plot.hpp"
#include "perf/startup/startup.hpp"

namespace chorus::perf {
namespace {

constexpr const char* kFormat = "chorus-startup";

template <class Value>
Spread spread(std::span<const RankCost> costs, Value value) {
  Spread result;
  for (const RankCost& cost : costs) {
    result.mean += value(cost) / static_cast<double>(costs.size());
    result.most = std::max(result.most, value(cost));
  }
  return result;
}

Json json_of(const Spread& spread) { return {{"mean", spread.mean}, {"most", spread.most}}; }

Spread spread_from(const Json& json) {
  return {.mean = json.at("mean").get<double>(), .most = json.at("most").get<double>()};
}

/// One column of figures against ranks, as inline data of gnuplot.
template <class Value>
std::string data(const StartupRecord& record, std::string_view name, Value value) {
  std::string text = fmt::format("${} << END\n", name);
  for (const StartupRow& row : record.rows) {
    text += fmt::format("{} {}\n", row.ranks, value(row));
  }
  return text + "END\n";
}

}  // namespace

StartupRow summary(std::span<const RankCost> costs) {
  if (costs.empty()) throw InputError("there are no ranks to sum up");
  StartupRow row;
  row.ranks = static_cast<int>(costs.size());
  for (std::size_t i = 0; i < kNumFirsts; ++i) {
    for (const RankCost& cost : costs) row.wall_s[i] = std::max(row.wall_s[i], cost.wall_s[i]);
    row.cpu_s[i] = spread(costs, [&](const RankCost& cost) { return cost.cpu_s[i]; });
  }
  row.cpu_of_start_s = spread(costs, [](const RankCost& cost) {
    return cost.cpu_s[0] + cost.cpu_s[1] + cost.cpu_s[2] + cost.cpu_s[3];
  });
  row.private_bytes = spread(costs, [](const RankCost& cost) { return cost.private_bytes; });
  row.descriptors = spread(costs, [](const RankCost& cost) { return cost.descriptors; });
  for (const RankCost& cost : costs) row.wrong += cost.wrong;
  return row;
}

std::string startup_header() {
  return fmt::format("{:>6} {:>38} {:>44} {:>15} {:>12} {:>6}\n{:>6} {:>38} {:>44} {:>15} {:>12}\n",
                     "", "longest of any rank, ms", "processor time of a rank, mean (most), ms",
                     "private, MB", "descriptors", "wrong", "ranks",
                     "join  barrier  reduce  gather  to_all",
                     "join        first calls     together", "mean (most)", "mean (most)");
}

std::string startup_line(const StartupRow& row) {
  Spread calls;
  for (std::size_t i = 1; i < kNumFirsts; ++i) {
    calls.mean += row.cpu_s[i].mean;
    calls.most += row.cpu_s[i].most;
  }
  const auto both = [](const Spread& spread, double unit) {
    return fmt::format("{:.1f} ({:.1f})", spread.mean * unit, spread.most * unit);
  };
  return fmt::format(
      "{:>6} {:>7.0f} {:>7.1f} {:>7.1f} {:>7.1f} {:>7.1f} {:>14} {:>14} {:>14} {:>15} "
      "{:>5.0f} ({:.0f}) {:>6.0f}\n",
      row.ranks, row.wall_s[0] * 1e3, row.wall_s[1] * 1e3, row.wall_s[2] * 1e3, row.wall_s[3] * 1e3,
      row.wall_s[4] * 1e3, both(row.cpu_s[0], 1e3), both(calls, 1e3), both(row.cpu_of_start_s, 1e3),
      both(row.private_bytes, 1e-6), row.descriptors.mean, row.descriptors.most, row.wrong);
}

std::string startup_json(const StartupRecord& record) {
  Json json{{"format", kFormat},       {"version", 1},
            {"commit", record.commit}, {"command", record.command},
            {"date", record.date},     {"machine", machine_json(record.machine)}};
  json["rows"] = Json::array();
  for (const StartupRow& row : record.rows) {
    Json entry{{"ranks", row.ranks}, {"wrong", row.wrong}};
    for (std::size_t i = 0; i < kNumFirsts; ++i) {
      entry["first"].push_back({{"what", kFirsts[i]},
                                {"longest_s", row.wall_s[i]},
                                {"processor_s", json_of(row.cpu_s[i])}});
    }
    entry["processor_of_start_s"] = json_of(row.cpu_of_start_s);
    entry["private_bytes"] = json_of(row.private_bytes);
    entry["descriptors"] = json_of(row.descriptors);
    json["rows"].push_back(std::move(entry));
  }
  return json.dump(1) + "\n";
}

std::vector<StartupRow> startup_rows(const std::string& text, const std::string& name) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != kFormat || json.at("version") != 1) {
      throw InputError(fmt::format("{}: is no {} of version 1", name, kFormat));
    }
    std::vector<StartupRow> rows;
    for (const Json& entry : json.at("rows")) {
      StartupRow row;
      row.ranks = entry.at("ranks").get<int>();
      for (std::size_t i = 0; i < kNumFirsts; ++i) {
        const Json& first = entry.at("first").at(i);
        row.wall_s[i] = first.at("longest_s").get<double>();
        row.cpu_s[i] = spread_from(first.at("processor_s"));
      }
      row.cpu_of_start_s = spread_from(entry.at("processor_of_start_s"));
      row.private_bytes = spread_from(entry.at("private_bytes"));
      row.descriptors = spread_from(entry.at("descriptors"));
      row.wrong = entry.at("wrong").get<double>();
      rows.push_back(row);
    }
    return rows;
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: {}", name, error.what()));
  }
}

std::string startup_script(const StartupRecord& record, const std::string& svg) {
  std::string script = fmt::format(
      "set terminal svg size 1200,420 dynamic font 'Helvetica,12' background '#ffffff'\n"
      "set output {}\nset encoding utf8\nset logscale xy\nset key right bottom\nset format y '%g'\n"
      "set border 3 lc rgb '#666666'\nset tics nomirror out textcolor rgb '#333333'\n"
      "set grid lc rgb '#dddddd' lw 1\nset xlabel 'ranks'\nset xtics (",
      quote(svg));
  for (std::size_t i = 0; i < record.rows.size(); ++i) {
    script += fmt::format("{}{}", i == 0 ? "" : ", ", record.rows[i].ranks);
  }
  script += ")\n";
  script += data(record, "joined", [](const StartupRow& row) { return row.wall_s[0]; });
  for (std::size_t i = 1; i < kNumFirsts; ++i) {
    script += data(record, kFirsts[i], [i](const StartupRow& row) { return row.wall_s[i]; });
  }
  script +=
      data(record, "cpu", [](const StartupRow& row) { return row.cpu_of_start_s.mean * 1e3; });
  script +=
      data(record, "cpu_most", [](const StartupRow& row) { return row.cpu_of_start_s.most * 1e3; });
  script +=
      data(record, "memory", [](const StartupRow& row) { return row.private_bytes.mean * 1e-6; });
  script += data(record, "memory_most",
                 [](const StartupRow& row) { return row.private_bytes.most * 1e-6; });
  script += fmt::format(
      "set multiplot layout 1,3 title {} noenhanced\n",
      quote(fmt::format("all ranks on one host of {} ({}), {}", counted(record.machine.cpus, "CPU"),
                        record.machine.cpu, record.date.substr(0, 10))));
  script += "set title 'longest of any rank, s'\nplot $joined with linespoints title 'join'";
  for (std::size_t i = 1; i < kNumFirsts; ++i) {
    script += fmt::format(", ${0} with linespoints title {1} noenhanced", kFirsts[i],
                          quote(fmt::format("first {}", kFirsts[i])));
  }
  script +=
      "\nset title 'processor time of a rank, ms: join, barrier, all\\_reduce, all\\_gather'\n"
      "plot $cpu with linespoints title 'mean', $cpu_most with linespoints title 'most'\n"
      "set title 'private memory of a rank, MB'\n"
      "plot $memory with linespoints title 'mean', $memory_most with linespoints title 'most'\n"
      "unset multiplot\n";
  return script;
}

}  // namespace chorus::perf
