// chorus-perf: measures, compares and shows.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>

#include "base/files.hpp"
#include "base/progress.hpp"
#include "chorus/error.hpp"
#include "perf/cluster/cluster.hpp"
#include "perf/cluster/table.hpp"
#include "perf/commit.hpp"
#include "perf/nccl_tests.hpp"
#include "perf/options.hpp"
#include "perf/plot.hpp"
#include "perf/table.hpp"

namespace chorus::perf {
namespace {

std::string joined(int argc, char** argv) {
  std::string text = "chorus-perf";
  for (int i = 1; i < argc; ++i) text += fmt::format(" {}", argv[i]);
  return text;
}

void print_report(const Report& report, Style style, bool details) {
  std::string text = preamble(report, style) + "\n";
  const std::string comparison = comparison_table(report, style);
  if (details || comparison.empty()) text += detail_tables(report, style);
  if (!comparison.empty()) text += comparison;
  text += bound_table(report, style);
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

Report measure_with_progress(const Settings& settings) {
  Progress progress(stderr, "chorus-perf");
  return measure_all(settings,
                     [&](const Step& step) { progress.show(step.done, step.total, step.what); });
}

int measure_like_nccl_tests(Settings settings) {
  const Report out_of_place = measure_with_progress(settings);
  settings.in_place = true;
  const Report in_place = measure_with_progress(settings);
  fmt::print("{}", nccl_tests_text(out_of_place, in_place, settings.root));
  fmt::print(stderr, "{}{}", remarks(out_of_place), remarks(in_place));
  return std::max(verdict(out_of_place), verdict(in_place));
}

int measure(const MeasureOptions& options, const std::string& command) {
  if (!options.json.empty()) require_writable(options.json);
  if (options.nccl_tests) return measure_like_nccl_tests(options.settings);
  Report report = measure_with_progress(options.settings);
  report.commit = kCommit;
  report.command = command;
  if (!options.json.empty()) write_file(options.json, to_json(report));
  print_report(report, options.style, options.details);
  fmt::print(stderr, "{}", remarks(report));
  if (!options.svg.empty()) draw_svg(report, options.svg);
  return verdict(report);
}

int compare(const CompareOptions& options) {
  double mean = 0;
  const std::string table =
      difference_table(load_report(options.a), load_report(options.b), options.style, &mean);
  fmt::print("{}", table);
  return options.fail_above > 0 && mean > options.fail_above ? 1 : 0;
}

int show(const ShowOptions& options) {
  const Report report = load_report(options.file);
  print_report(report, options.style, options.details);
  fmt::print(stderr, "{}", remarks(report));
  if (!options.svg.empty()) draw_svg(report, options.svg);
  return 0;
}

int run(int argc, char** argv) {
  const CommandLine parsed = parse_options(argc, argv, find_libraries());
  if (const auto* leave = std::get_if<Leave>(&parsed)) {
    fmt::print(leave->exit_code == 0 ? stdout : stderr, "{}", leave->text);
    return leave->exit_code;
  }
  stop_on_signals();
  adopt_orphans();
  if (const auto* options = std::get_if<ExplainOptions>(&parsed)) return explain(*options);
  if (const auto* options = std::get_if<CompareOptions>(&parsed)) return compare(*options);
  if (const auto* options = std::get_if<ShowOptions>(&parsed)) return show(*options);
  if (const auto* options = std::get_if<ClusterOptions>(&parsed)) return cluster_command(*options);
  return measure(std::get<MeasureOptions>(parsed), joined(argc, argv));
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
    return std::max(status, 1);
  } catch (const InputError& error) {
    fmt::print(stderr, "chorus-perf: {}\n", error.what());
    return 2;
  } catch (const perf::NotAllowed& error) {
    fmt::print(stderr, "chorus-perf: {}\n", error.what());
    return 3;
  } catch (const perf::Interrupted& interrupted) {
    fmt::print(stderr, "chorus-perf: stopped by a signal; nothing is left running\n");
    return 128 + interrupted.signal;
  } catch (const std::exception& error) {
    fmt::print(stderr, "chorus-perf: {}\n", error.what());
    return 1;
  }
}
