#include "record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "chorus/error.hpp"
#include "perf/report/json.hpp"
#include "perf/report/plot.hpp"
#include "perf/report/statistics.hpp"

namespace chorus::campaign {
namespace {

using perf::Json;

constexpr const char* kFormat = "chorus-campaign";
constexpr double kShares[] = {0.5, 0.9, 0.99, 1};
constexpr const char* kShareNames[] = {"p50", "p90", "p99", "most"};

Json json_of(const std::vector<double>& values) {
  Json json{{"count", values.size()}};
  for (std::size_t i = 0; i < std::size(kShares) && !values.empty(); ++i) {
    json[kShareNames[i]] = perf::percentile(values, kShares[i]);
  }
  // All of them, so that a campaign can be continued.
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  std::string all;
  for (const double value : sorted) all += fmt::format("{}{:.1f}", all.empty() ? "" : " ", value);
  json["all"] = all;
  return json;
}

std::vector<double> values_from(const Json& json) {
  std::vector<double> values;
  const auto text = json.at("all").get<std::string>();
  for (const char* at = text.c_str(); *at != '\0';) {
    char* end = nullptr;
    values.push_back(std::strtod(at, &end));
    if (end == at) throw InputError("a time that is no number");
    at = end;
  }
  return values;
}

template <typename Enum>
Enum enum_from(const Json& json, int count) {
  const auto name = json.get<std::string>();
  for (int i = 0; i < count; ++i) {
    if (name == name_of(static_cast<Enum>(i))) return static_cast<Enum>(i);
  }
  throw InputError(fmt::format("\"{}\" is unknown", name));
}

std::string line(const std::string& what, int trials, const Times& times) {
  const auto figures = [](const std::vector<double>& values) {
    if (values.empty()) return std::string(fmt::format("{:>37}", ""));
    std::string text = fmt::format("{:>5}", values.size());
    for (const double share : kShares) {
      text += fmt::format("{:>8.0f}", perf::percentile(values, share));
    }
    return text;
  };
  return fmt::format("{:<32} {:>6} |{} |{}\n", what, trials, figures(times.named_ms),
                     figures(times.usable_ms));
}

/// A death among ranks that had joined, of which none waits for others to come.
bool is_loss(Phase phase, Fault fault) {
  return (fault == Fault::kill || fault == Fault::kill_two) &&
         (phase == Phase::collectives || phase == Phase::split || phase == Phase::shrink);
}

Times losses(const Record& record) {
  Times sum;
  for (const auto& [key, times] : record.rows) {
    if (is_loss(key.first, key.second)) sum.add(times);
  }
  return sum;
}

}  // namespace

void Times::add(const Result& result) {
  ++trials;
  if (result.named_s > 0) named_ms.push_back(1e3 * result.named_s);
  if (result.usable_s > 0) usable_ms.push_back(1e3 * result.usable_s);
}

void Times::add(const Times& other) {
  trials += other.trials;
  named_ms.insert(named_ms.end(), other.named_ms.begin(), other.named_ms.end());
  usable_ms.insert(usable_ms.end(), other.usable_ms.begin(), other.usable_ms.end());
}

std::string to_json(const Record& record) {
  Json json{{"format", kFormat},
            {"version", 1},
            {"machine", machine_json(record.machine)},
            {"seed", record.seed},
            {"trials", record.trials},
            {"as_promised", record.trials - static_cast<int>(record.broken.size())}};
  for (const Part& part : record.parts) {
    json["parts"].push_back({{"commit", part.commit},
                             {"command", part.command},
                             {"date", part.date},
                             {"from", part.from},
                             {"to", part.to}});
  }
  json["broken"] = Json::array();
  for (const Broken& broken : record.broken) {
    json["broken"].push_back(
        {{"number", broken.number}, {"trial", broken.trial}, {"why", broken.why}});
  }
  const Times sum = losses(record);
  json["losses_of_ranks_that_had_joined"] = {{"trials", sum.trials}};
  for (std::size_t i = 0; i < std::size(kShares) && !sum.named_ms.empty(); ++i) {
    json["losses_of_ranks_that_had_joined"]["named_ms"][kShareNames[i]] =
        perf::percentile(sum.named_ms, kShares[i]);
    json["losses_of_ranks_that_had_joined"]["usable_ms"][kShareNames[i]] =
        perf::percentile(sum.usable_ms, kShares[i]);
  }
  json["rows"] = Json::array();
  for (const auto& [key, times] : record.rows) {
    json["rows"].push_back({{"phase", name_of(key.first)},
                            {"fault", name_of(key.second)},
                            {"trials", times.trials},
                            {"named_ms", json_of(times.named_ms)},
                            {"usable_ms", json_of(times.usable_ms)}});
  }
  return json.dump(1) + "\n";
}

Record record_from(const std::string& text, const std::string& name) {
  try {
    const Json json = Json::parse(text);
    if (json.at("format") != kFormat || json.at("version") != 1) {
      throw InputError(fmt::format("is no {} of version 1", kFormat));
    }
    Record record{.seed = json.at("seed").get<std::uint64_t>(),
                  .trials = json.at("trials").get<int>(),
                  .machine = perf::machine_from(json.at("machine"))};
    for (const Json& part : json.at("parts")) {
      record.parts.push_back({.commit = part.at("commit").get<std::string>(),
                              .command = part.at("command").get<std::string>(),
                              .date = part.at("date").get<std::string>(),
                              .from = part.at("from").get<int>(),
                              .to = part.at("to").get<int>()});
    }
    for (const Json& broken : json.at("broken")) {
      record.broken.push_back({.number = broken.at("number").get<int>(),
                               .trial = broken.at("trial").get<std::string>(),
                               .why = broken.at("why").get<std::string>()});
    }
    for (const Json& row : json.at("rows")) {
      record.rows[{enum_from<Phase>(row.at("phase"), kNumPhases),
                   enum_from<Fault>(row.at("fault"), kNumFaults)}] = {
          .trials = row.at("trials").get<int>(),
          .named_ms = values_from(row.at("named_ms")),
          .usable_ms = values_from(row.at("usable_ms"))};
    }
    return record;
  } catch (const Json::exception& error) {
    throw InputError(fmt::format("{}: {}", name, error.what()));
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}: {}", name, error.what()));
  }
}

std::string table(const Record& record) {
  std::string text = fmt::format(
      "{:<39} |{:^37} |{:^37}\n{:<32} {:>6} |{:>5}{:>8}{:>8}{:>8}{:>8} "
      "|{:>5}{:>8}{:>8}{:>8}{:>8}\n",
      "", "until all were told, ms", "until all went on, ms", "", "trials", "of", "p50", "p90",
      "p99", "most", "of", "p50", "p90", "p99", "most");
  for (const auto& [key, times] : record.rows) {
    text +=
        line(fmt::format("{}: {}", name_of(key.first), name_of(key.second)), times.trials, times);
  }
  const Times sum = losses(record);
  text += line("losses of ranks that had joined", sum.trials, sum);
  return text + fmt::format("{} of {} ended as promised\n",
                            record.trials - static_cast<int>(record.broken.size()), record.trials);
}

std::string script(const Record& record, const std::string& svg) {
  std::map<Fault, Times> by_fault;
  for (const auto& [key, times] : record.rows) {
    // Before all have joined time alone tells.
    if (key.first != Phase::join) by_fault[key.second].add(times);
  }
  std::string data, plots[2];
  for (auto& [fault, times] : by_fault) {
    int which = 0;
    for (auto* values : {&times.named_ms, &times.usable_ms}) {
      std::string& plot = plots[which++];
      if (values->empty()) continue;
      std::sort(values->begin(), values->end());
      const std::string name = fmt::format("$d{}_{}", static_cast<int>(fault), which);
      data += name + " << END\n";
      for (std::size_t i = 0; i < values->size(); ++i) {
        data +=
            fmt::format("{:.3f} {:.4f}\n", std::max((*values)[i], 0.1) * 1e-3,
                        100.0 * static_cast<double>(i + 1) / static_cast<double>(values->size()));
      }
      data += "END\n";
      plot += fmt::format("{}{} with steps title {}", plot.empty() ? "plot " : ", ", name,
                          perf::quote(fmt::format("{} ({})", name_of(fault), values->size())));
    }
  }
  return fmt::format(
      "set terminal svg size 1100,420 dynamic font 'Helvetica,12' background '#ffffff'\n"
      "set output {}\nset encoding utf8\nset logscale x\nset key right bottom\nset format x '%g'\n"
      "set border 3 lc rgb '#666666'\nset tics nomirror out textcolor rgb '#333333'\n"
      "set grid lc rgb '#dddddd' lw 1\nset xlabel 's'\nset ylabel '% of jobs'\n{}"
      "set multiplot layout 1,2 title {} noenhanced\n"
      "set title 'until all were told'\n{}\nset title 'until all went on'\n{}\n"
      "unset multiplot\n",
      perf::quote(svg), data,
      perf::quote(fmt::format("{} jobs of 2 to 6 ranks, without those struck while they join; {} "
                              "CPUs ({})",
                              record.trials, record.machine.cpus, record.machine.cpu)),
      plots[0], plots[1]);
}

}  // namespace chorus::campaign
