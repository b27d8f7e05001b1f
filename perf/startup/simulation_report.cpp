#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "perf/startup/simulation.hpp"
#include "runtime/control/coordinator/end.hpp"

namespace chorus::perf {
namespace {

using Json = nlohmann::ordered_json;

/// One column of figures against ranks, as inline data of gnuplot.
template <class Value>
std::string data_of(const std::vector<SimulatedJoin>& joins, std::string_view name, Value value) {
  std::string text = fmt::format("${} << END\n", name);
  for (const SimulatedJoin& join : joins) text += fmt::format("{} {}\n", join.ranks, value(join));
  return text + "END\n";
}

}  // namespace

JoinFormula join_formula(const SimulatedJob& job) {
  const double n = job.ranks;
  const double hosts = std::ceil(n / job.ranks_per_host);
  const double relays = std::min<double>(hosts, CoordinatorEnd::kRelays);
  const double b = static_cast<double>(job.blob_bytes) + 4;
  // A rank says hello, opens a group and gives its blob; it is let in. A relay comes once.
  JoinFormula formula;
  const double frames = job.by_relay ? 4 * n + 4 * hosts + 2 * relays : 8 * n;
  formula.coordinator_frames = static_cast<std::uint64_t>(frames);
  formula.coordinator_bytes_in = n * (b + 250);
  formula.coordinator_bytes_out = (job.by_relay ? relays : n) * n * b;
  formula.coordinator_connections =
      static_cast<std::size_t>(job.by_relay ? std::min(hosts, relays + 256) : n);
  // Each relay hands the table on to as many, one level after the other.
  double levels = 0;
  for (double reached = relays; job.by_relay && reached < hosts; reached *= relays) ++levels;
  const double table_s = n * b / job.costs.bytes_per_s;
  const double frame_s = std::max(job.costs.receive_s, job.costs.send_s);
  formula.exchanged_s =
      frames * frame_s + n * job.costs.prove_s +
      (formula.coordinator_bytes_in + formula.coordinator_bytes_out) / job.costs.bytes_per_s +
      levels * relays * table_s + 8 * job.ranks_per_host * frame_s +
      14 * (levels + 1) * (job.costs.latency_s + 2 * frame_s);
  return formula;
}

std::string simulation_header() {
  return fmt::format("{:>8} {:>7} {:>9} {:>10} {:>12} {:>6} {:>11} {:>11} {:>6}\n", "ranks",
                     "hosts", "joined s", "table s", "connections", "depth", "in MB", "out MB",
                     "wrong");
}

std::string simulation_line(const SimulatedJoin& join) {
  return fmt::format("{:>8} {:>7} {:>9.3f} {:>10.3f} {:>12} {:>6} {:>11.1f} {:>11.1f} {:>6}\n",
                     join.ranks, join.hosts, join.joined_s, join.exchanged_s, join.most_connections,
                     join.depth, join.coordinator_bytes_in * 1e-6,
                     join.coordinator_bytes_out * 1e-6, join.wrong);
}

std::string simulation_json(const std::vector<SimulatedJoin>& joins, const SimulatedCosts& costs,
                            const std::string& commit, const std::string& command) {
  Json json{{"format", "chorus-simulated-join"},
            {"version", 1},
            {"commit", commit},
            {"command", command},
            {"costs",
             {{"latency_s", costs.latency_s},
              {"local_latency_s", costs.local_latency_s},
              {"bytes_per_s", costs.bytes_per_s},
              {"local_bytes_per_s", costs.local_bytes_per_s},
              {"receive_s", costs.receive_s},
              {"send_s", costs.send_s},
              {"prove_s", costs.prove_s}}}};
  json["rows"] = Json::array();
  for (const SimulatedJoin& join : joins) {
    json["rows"].push_back({{"ranks", join.ranks},
                            {"hosts", join.hosts},
                            {"joined_s", join.joined_s},
                            {"exchanged_s", join.exchanged_s},
                            {"most_connections", join.most_connections},
                            {"coordinator_connections", join.coordinator_connections},
                            {"coordinator_frames", join.coordinator_frames},
                            {"coordinator_bytes_in", join.coordinator_bytes_in},
                            {"coordinator_bytes_out", join.coordinator_bytes_out},
                            {"most_bytes_out", join.most_bytes_out},
                            {"depth", join.depth},
                            {"wrong", join.wrong}});
  }
  return json.dump(1) + "\n";
}

std::string simulation_script(const std::vector<SimulatedJoin>& joins, const std::string& svg) {
  std::string script = fmt::format(
      "set terminal svg size 1200,420 dynamic font 'Helvetica,12' background '#ffffff'\n"
      "set output '{}'\nset encoding utf8\nset logscale xy\nset key right bottom\n"
      "set format y '%g'\nset border 3 lc rgb '#666666'\n"
      "set tics nomirror out textcolor rgb '#333333'\nset grid lc rgb '#dddddd' lw 1\n"
      "set xlabel 'ranks'\n",
      svg);
  script += data_of(joins, "joined", [](const SimulatedJoin& join) { return join.joined_s; });
  script += data_of(joins, "table", [](const SimulatedJoin& join) { return join.exchanged_s; });
  script += data_of(joins, "out",
                    [](const SimulatedJoin& join) { return join.coordinator_bytes_out * 1e-6; });
  script +=
      data_of(joins, "most", [](const SimulatedJoin& join) { return join.most_bytes_out * 1e-6; });
  script += data_of(joins, "connections",
                    [](const SimulatedJoin& join) { return join.most_connections; });
  script +=
      "set multiplot layout 1,3 title 'joining, simulated: 8 ranks per host'\n"
      "set title 's'\nplot $joined with linespoints title 'all have joined', "
      "$table with linespoints title 'all have the first table'\n"
      "set title 'MB sent'\nplot $out with linespoints title 'by the coordinator', "
      "$most with linespoints title 'by any process'\n"
      "set title 'connections of any process'\n"
      "plot $connections with linespoints notitle\nunset multiplot\n";
  return script;
}

}  // namespace chorus::perf
