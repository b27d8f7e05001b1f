// chorus-perf: measures, compares and shows.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>

#include "base/exhausted.hpp"
#include "base/files/files.hpp"
#include "base/text/progress.hpp"
#include "chorus/error.hpp"
#include "chorus/options.hpp"
#include "perf/allocation/allocation.hpp"
#include "perf/cluster/cluster.hpp"
#include "perf/cluster/table.hpp"
#include "perf/commit.hpp"
#include "perf/families/report.hpp"
#include "perf/options.hpp"
#include "perf/report/nccl_tests.hpp"
#include "perf/report/plot.hpp"
#include "perf/report/table.hpp"

namespace chorus::perf {
namespace {

void print_report(const Report& report, Style style, bool details) {
  std::string text = preamble(report, style) + "\n";
  const std::string comparison = comparison_table(report, style);
  if (details || comparison.empty()) text += detail_tables(report, style);
  if (!comparison.empty()) text += comparison;
  text += bound_table(report, style) + share_table(report, style);
  fmt::print("{}", text);
}

/// 1 if a result was wrong, if Chorus failed somewhere, or if nothing at all could be measured.
int verdict(const Report& report) {
  const bool any = std::any_of(report.rows.begin(), report.rows.end(),
                               [](const Row& row) { return row.p50_us.has_value(); });
  const bool fault = std::any_of(report.rows.begin(), report.rows.end(), [](const Row& row) {
    return row.wrong != 0 || (row.library == "chorus" && !row.reason.empty());
  });
  return any && !fault ? 0 : 1;
}

Report measure_with_progress(const Settings& settings, Allocation* job,
                             const Continued& continued = {}) {
  Progress progress(stderr, "chorus-perf");
  return measure_all(
      settings, [&](const Step& step) { progress.show(step.done, step.total, step.what); }, job,
      continued);
}

/// With --continue what the record has already, and with --json where it is saved after every
/// cluster.
Continued continued_of(const MeasureOptions& options, const std::string& command) {
  Continued continued;
  std::string commands = command;
  if (options.continued && std::filesystem::exists(options.json)) {
    continued.before = load_report(options.json);
    const std::string why = why_not_continue(continued.before, options.settings, kCommit);
    if (!why.empty()) {
      throw InputError(
          fmt::format("{} cannot be continued: {}: begin another record", options.json, why));
    }
    commands = continued.before.command;
    if (!commands.ends_with(command)) commands += "; " + command;
  }
  continued.before.command = commands;
  if (!options.json.empty() && options.json != "-") {
    continued.save = [path = options.json, commands](Report report) {
      report.commit = kCommit;
      report.command = commands;
      write_output(path, to_json(report));
    };
  }
  return continued;
}

int measure_like_nccl_tests(Settings settings, Allocation* job) {
  const Report out_of_place = measure_with_progress(settings, job);
  settings.in_place = true;
  const Report in_place = measure_with_progress(settings, job);
  fmt::print("{}", nccl_tests_text(out_of_place, in_place, settings.root));
  fmt::print(stderr, "{}{}", remarks(out_of_place), remarks(in_place));
  return std::max(verdict(out_of_place), verdict(in_place));
}

int measure(const MeasureOptions& options, const std::string& command, Allocation* job) {
  for (const std::string& path : {options.json, options.svg}) {
    if (!path.empty()) require_writable(path);
  }
  const bool only_result = one_is_standard_output({options.json, options.svg});
  if (options.nccl_tests) return measure_like_nccl_tests(options.settings, job);
  const Continued continued = continued_of(options, command);
  Report report = measure_with_progress(options.settings, job, continued);
  report.commit = kCommit;
  report.command = continued.before.command;
  if (!options.json.empty()) write_output(options.json, to_json(report));
  if (!only_result) print_report(report, options.style, options.details);
  fmt::print(stderr, "{}", remarks(report));
  if (!options.svg.empty()) draw_svg(report, options.svg);
  return verdict(report);
}

int compare(const CompareOptions& options) {
  double mean = 0;
  const std::string a = read_file(options.a);
  const std::string b = read_file(options.b);
  const std::string table =
      is_family_report(a)
          ? family_difference(family_report_from_json(a, options.a),
                              family_report_from_json(b, options.b), options.style, &mean)
          : difference_table(report_from_json(a, options.a), report_from_json(b, options.b),
                             options.style, &mean);
  fmt::print("{}", table);
  return options.fail_above > 0 && mean > options.fail_above ? 1 : 0;
}

int show(const ShowOptions& options) {
  Report report = load_report(options.file);
  if (!options.benchmarks.empty()) {
    std::erase_if(report.rows, [&](const Row& row) {
      return std::ranges::find(options.benchmarks, row.collective) == options.benchmarks.end();
    });
  }
  if (report.rows.empty()) {
    throw InputError(
        fmt::format("{} has no row of {}", options.file, fmt::join(options.benchmarks, ", ")));
  }
  if (!one_is_standard_output({options.svg})) print_report(report, options.style, options.details);
  fmt::print(stderr, "{}", remarks(report));
  if (!options.svg.empty()) draw_svg(report, options.svg);
  return 0;
}

/// One process of a job: rank 0 measures, the others help it.
int measure_in_job(const MeasureOptions& options, const std::string& command,
                   const chorus::Launch& launch) {
  Allocation job(launch);
  if (job.rank() == 0) return measure(options, command, &job);
  job.serve();
  return 0;
}

int run(int argc, char** argv) {
  const chorus::Launch launch = chorus::Launch::from_env();
  const bool in_job = launch.world_size > 1;
  const CommandLine parsed =
      parse_options(argc, argv, find_libraries(), in_job ? launch.world_size : 0);
  const auto* to_measure = std::get_if<MeasureOptions>(&parsed);
  if (const auto* leave = std::get_if<Leave>(&parsed)) {
    if (launch.rank == 0) fmt::print(leave->exit_code == 0 ? stdout : stderr, "{}", leave->text);
    return leave->exit_code;
  }
  if (launch.rank != 0 && to_measure == nullptr) return 0;  // once is enough
  stop_on_signals();
  adopt_orphans();
  if (const auto* options = std::get_if<ExplainOptions>(&parsed)) return explain(*options);
  if (const auto* options = std::get_if<CompareOptions>(&parsed)) return compare(*options);
  if (const auto* options = std::get_if<ShowOptions>(&parsed)) return show(*options);
  if (const auto* options = std::get_if<ClusterOptions>(&parsed)) return cluster_command(*options);
  const std::string command = command_given("chorus-perf", argc, argv);
  if (in_job) return measure_in_job(*to_measure, command, launch);
  return measure(*to_measure, command, nullptr);
}

}  // namespace
}  // namespace chorus::perf

int main(int argc, char** argv) {
  using namespace chorus;
  try {
    const int status = perf::run(argc, argv);
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
    fmt::print(stderr, "chorus-perf: standard output cannot be written: {}\n",
               std::strerror(errno));
    return 2;
  } catch (const InputError& error) {
    fmt::print(stderr, "chorus-perf: {}\n", error.what());
    return 2;
  } catch (const perf::NotAllowed& error) {
    fmt::print(stderr, "chorus-perf: {}\n", error.what());
    return 3;
  } catch (const perf::Interrupted& interrupted) {
    fmt::print(stderr, "chorus-perf: stopped by a signal; nothing is left running\n");
    return 128 + interrupted.signal;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "chorus-perf: {}\n", kMemoryExhausted);
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "chorus-perf: {}\n", error.what());
    return 1;
  }
}
