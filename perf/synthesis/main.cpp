// chorus-perf-synthesis: how long schedules take to synthesize, beside what others take.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "command/arguments.hpp"
#include "command/command_line.hpp"
#include "perf/commit.hpp"
#include "perf/families/instances.hpp"
#include "perf/families/measure.hpp"
#include "perf/families/report.hpp"
#include "perf/report/machine.hpp"
#include "perf/report/report.hpp"
#include "perf/report/table.hpp"
#include "perf/synthesis/rows.hpp"

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
  const bool only_result = one_is_standard_output({wishes.json});
  if (!only_result) fmt::print("{}", table_of(rows, peer));
  if (peer.present() && !only_result) {
    fmt::print(
        "msccl-tools: CPU seconds of its process less {:.2f} s to start it; > where it was "
        "ended after {:.0f} s\n",
        peer.start_up_seconds(), wishes.peer_timeout_s);
  }
  if (!wishes.json.empty()) write_output(wishes.json, to_json(rows, peer, command));
  return std::all_of(rows.begin(), rows.end(),
                     [](const SynthesisRow& row) { return row.found && row.met; })
             ? 0
             : 1;
}

struct FamilyRecord {
  std::string json;
  bool continued = false;
};

/// The record to add rows to: empty, or the one that is there, of this commit and these sizes.
FamilyReport begun(const FamilyWishes& wishes, const FamilyRecord& record,
                   const std::string& command) {
  FamilyReport fresh{this_machine(), kCommit, command, utc_now(), {}};
  if (!record.continued || !std::filesystem::exists(record.json)) return fresh;
  FamilyReport report = family_report_from_json(read_file(record.json), record.json);
  if (report.commit != fresh.commit) {
    throw InputError(
        fmt::format("{} was measured at commit {} and this program is of {}: begin "
                    "another record",
                    record.json, report.commit, fresh.commit));
  }
  for (const FamilyRow& row : report.rows) {
    for (const FamilyResult& result : row.results) {
      if (std::ranges::find(wishes.sizes, result.bytes) != wishes.sizes.end()) continue;
      throw InputError(fmt::format("{} has rows of {}, a size that --bytes does not name",
                                   record.json, human_bytes(result.bytes)));
    }
  }
  if (!report.command.ends_with(command)) report.command += "; " + command;
  return report;
}

/// The families' record, printed, and saved after every row. 1 if some plan failed.
int measure(const FamilyWishes& wishes, const FamilyRecord& record, const std::string& command) {
  if (!record.json.empty()) require_writable(record.json);
  FamilyReport report = begun(wishes, record, command);
  const bool only_result = one_is_standard_output({record.json});
  const auto save = [&] {
    if (!record.json.empty() && !only_result) write_output(record.json, to_json(report));
  };
  measure_families(wishes, report, save,
                   [](std::string_view what) { fmt::print(stderr, "families: {}\n", what); });
  fmt::print("{}", only_result ? to_json(report) : family_tables(report, Style::text));
  return std::ranges::all_of(report.rows, [](const auto& row) { return row.failure.empty(); }) ? 0
                                                                                               : 1;
}

CLI::App* add_families(CLI::App& app, FamilyWishes& wishes, FamilyRecord& record) {
  std::vector<std::string> names;
  std::string list;
  for (const Family& family : families()) {
    names.emplace_back(family.name);
    list += fmt::format("\n  {:<14}{}", family.name, family.what);
  }
  CLI::App* command = app.add_subcommand(
      "families",
      "Plans for wirings that a seed draws, against their limits: quantiles by family, collective "
      "and size, CPU seconds, memory, and which strategy won. Families:" +
          list);
  command->add_option("families", wishes.families, "which; all if none is named")
      ->check(CLI::IsMember(names));
  command->add_option("--seed", wishes.seed, "what is drawn")->capture_default_str();
  command->add_option("--instances", wishes.instances, "wirings of each family")
      ->capture_default_str()
      ->check(CLI::Range(1, 10'000));
  command->add_option("--most-ranks", wishes.most_ranks, "of a wiring")
      ->capture_default_str()
      ->check(CLI::Range(8, 1024));
  command->add_option("--topology", wishes.names, "plan for these names instead of drawn ones");
  command->add_option("-b,--bytes", wishes.sizes, "sizes, ascending; as in 1M")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->transform(byte_size());
  command->add_option("--most-cpu-s", wishes.most_cpu_s, "that one plan may take")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  command->add_flag("--exhaustive", wishes.exhaustive,
                    "ask every strategy, also where one has reached the limit");
  CLI::Option* json =
      command->add_option("--json", record.json, "save the record there, after every wiring");
  command
      ->add_flag("--continue", record.continued,
                 "keep the wirings that the record already has, and measure the others")
      ->needs(json);
  return command;
}

int run(int argc, char** argv) {
  Wishes wishes;
  FamilyWishes family_wishes;
  std::vector<std::string> names;
  std::string list;
  for (const SynthesisPart& part : synthesis_parts()) {
    names.emplace_back(part.name);
    list += fmt::format("\n  {:<12}{}", part.name, part.what);
  }
  CLI::App app("Measures how long schedules take to synthesize, in CPU seconds. Parts:" + list,
               "chorus-perf-synthesis");
  app.add_option("parts", wishes.parts, "what to measure; all if none is named")
      ->delimiter(',')
      ->check(one_of(names, "a part"));
  app.add_option("--json", wishes.json, "also save the result there; - for standard output alone");
  app.add_option("--msccl-tools", wishes.msccl_tools,
                 "checkout of microsoft/msccl-tools to measure on the same instances");
  app.add_option("--python", wishes.python, "that runs msccl-tools")->capture_default_str();
  app.add_option("--peer-timeout-s", wishes.peer_timeout_s, "CPU seconds for each of its instances")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  FamilyRecord family_record;
  const CLI::App* families_command = add_families(app, family_wishes, family_record);
  app.footer("Example: chorus-perf-synthesis plans --json rows.json");
  add_common_options(app);
  if (const auto leave = read_command_line(app, argc, argv)) {
    fmt::print(leave->exit_code == 0 ? stdout : stderr, "{}", leave->text);
    return leave->exit_code;
  }
  const std::string command = command_given("chorus-perf-synthesis", argc, argv);
  if (*families_command) return measure(family_wishes, family_record, command);
  return measure(wishes, command);
}

}  // namespace
}  // namespace chorus::perf

/// 0: every target met; 1: some missed; 2: bad usage.
int main(int argc, char** argv) {
  return chorus::exit_code_of("chorus-perf-synthesis",
                              [&] { return chorus::perf::run(argc, argv); });
}
