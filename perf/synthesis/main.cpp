// chorus-perf-synthesis: how long schedules take to synthesize, beside what others take.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "chorus/error.hpp"
#include "perf/commit.hpp"
#include "perf/machine.hpp"
#include "perf/report.hpp"
#include "perf/synthesis/rows.hpp"
#include "perf/table.hpp"

namespace chorus::perf {
namespace {

struct Wishes {
  std::vector<std::string> parts;
  std::string json;
  std::string msccl_tools;
  std::string python = "python3";
  double peer_timeout_s = 300;
};

std::string seconds_text(double seconds) {
  return fmt::format("{:.{}f}", seconds, seconds < 10 ? 3 : 1);
}

std::string verdict_text(const SynthesisRow& row) {
  if (!row.found) return "not found";
  if (row.target.empty()) return "";
  return row.met ? "met" : "missed";
}

std::string table_of(const std::vector<SynthesisRow>& rows, const SynthesisPeer& peer) {
  Table table;
  table.header = {"instance (C,S,R)", "CPU s"};
  if (peer.present()) {
    table.header.insert(table.header.end(), {"msccl-tools", "ratio"});
  }
  table.header.insert(table.header.end(), {"target", "", "found"});
  for (const SynthesisRow& row : rows) {
    std::vector<std::string> cells = {row.name, seconds_text(row.seconds)};
    if (peer.present()) {
      const char* beyond = row.peer_timed_out ? "> " : "";
      cells.push_back(row.peer_seconds ? beyond + seconds_text(*row.peer_seconds) : "-");
      cells.push_back(row.peer_seconds
                          ? fmt::format("{}{:.0f}", beyond, *row.peer_seconds / row.seconds)
                          : "-");
    }
    cells.insert(cells.end(), {row.target, verdict_text(row), row.note});
    table.rows.push_back(std::move(cells));
  }
  return render(table, Style::text);
}

std::string to_json(const std::vector<SynthesisRow>& rows, const SynthesisPeer& peer,
                    const std::string& command) {
  const Machine machine = this_machine();
  nlohmann::ordered_json json = {{"format", "chorus-perf-synthesis"},
                                 {"version", 1},
                                 {"date", utc_now()},
                                 {"commit", kCommit},
                                 {"command", command},
                                 {"machine",
                                  {{"cpu", machine.cpu},
                                   {"cpus", machine.cpus},
                                   {"memory", machine.memory},
                                   {"kernel", machine.kernel},
                                   {"system", machine.system}}}};
  if (peer.present()) json["msccl_tools_start_up_s"] = peer.start_up_seconds();
  for (const SynthesisRow& row : rows) {
    nlohmann::ordered_json entry = {{"part", row.part}, {"name", row.name}, {"cpu_s", row.seconds}};
    if (row.peer_seconds) {
      entry["msccl_tools_cpu_s"] = *row.peer_seconds;
      entry["msccl_tools_timed_out"] = row.peer_timed_out;
    }
    if (!row.target.empty()) entry["target"] = row.target;
    entry["found"] = row.found;
    entry["met"] = row.met;
    if (!row.note.empty()) entry["note"] = row.note;
    json["rows"].push_back(std::move(entry));
  }
  return json.dump(1) + "\n";
}

int measure(const Wishes& wishes, const std::string& command) {
  SynthesisPeer peer(wishes.msccl_tools, wishes.python, wishes.peer_timeout_s);
  std::vector<SynthesisRow> rows;
  for (const SynthesisPart& part : synthesis_parts()) {
    const bool wanted = wishes.parts.empty() || std::find(wishes.parts.begin(), wishes.parts.end(),
                                                          part.name) != wishes.parts.end();
    if (!wanted) continue;
    part.measure({peer,
                  [&](SynthesisRow row) {
                    row.part = part.name;
                    rows.push_back(std::move(row));
                  },
                  [&](std::string_view what) { fmt::print(stderr, "{}: {}\n", part.name, what); }});
  }
  if (rows.empty()) throw InputError("nothing to measure: this build has no synthesizer with rows");
  fmt::print("{}", table_of(rows, peer));
  if (peer.present()) {
    fmt::print(
        "msccl-tools: CPU seconds of its process less {:.2f} s to start it; > where it was "
        "ended after {:.0f} s\n",
        peer.start_up_seconds(), wishes.peer_timeout_s);
  }
  if (!wishes.json.empty()) write_file(wishes.json, to_json(rows, peer, command));
  return std::all_of(rows.begin(), rows.end(),
                     [](const SynthesisRow& row) { return row.found && row.met; })
             ? 0
             : 1;
}

int run(int argc, char** argv) {
  Wishes wishes;
  std::vector<std::string> names;
  std::string list;
  for (const SynthesisPart& part : synthesis_parts()) {
    names.emplace_back(part.name);
    list += fmt::format("\n  {:<12}{}", part.name, part.what);
  }
  CLI::App app("Measures how long schedules take to synthesize, in CPU seconds. Parts:" + list);
  app.add_option("parts", wishes.parts, "what to measure; all if none is named")
      ->check(CLI::IsMember(names));
  app.add_option("--json", wishes.json, "also save the result there");
  app.add_option("--msccl-tools", wishes.msccl_tools,
                 "checkout of microsoft/msccl-tools to measure on the same instances");
  app.add_option("--python", wishes.python, "that runs msccl-tools")->capture_default_str();
  app.add_option("--peer-timeout-s", wishes.peer_timeout_s, "CPU seconds for each of its instances")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::string command = "chorus-perf-synthesis";
  for (int i = 1; i < argc; ++i) command += fmt::format(" {}", argv[i]);
  return measure(wishes, command);
}

}  // namespace
}  // namespace chorus::perf

/// 0: every target met; 1: some missed; 2: bad usage.
int main(int argc, char** argv) {
  try {
    return chorus::perf::run(argc, argv);
  } catch (const chorus::InputError& error) {
    fmt::print(stderr, "chorus-perf-synthesis: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "chorus-perf-synthesis: {}\n", error.what());
    return 1;
  }
}
