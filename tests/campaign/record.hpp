// What a campaign found, by phase and fault: as JSON, as a table, as a picture.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "perf/report/machine.hpp"
#include "trial.hpp"

namespace chorus::campaign {

/// Trials of one phase and fault.
struct Times {
  int trials = 0;
  std::vector<double> named_ms = {},
                      usable_ms = {};  ///< of those in which there was something to tell

  void add(const Result& result);
  void add(const Times& other);
};

struct Broken {
  int number = 0;
  std::string trial, why;
};

/// What was run in one go.
struct Part {
  std::string commit, command, date;
  int from = 0, to = 0;  ///< numbers of trials, [from, to)
};

struct Record {
  std::uint64_t seed = 0;
  int trials = 0;  ///< those of the numbers below this have been run
  perf::Machine machine = {};
  std::vector<Part> parts = {};
  std::vector<Broken> broken = {};
  std::map<std::pair<Phase, Fault>, Times> rows = {};
};

/// "chorus-campaign", version 1 (docs/bootstrap.md).
[[nodiscard]] std::string to_json(const Record& record);
/// Throws InputError for anything else; `name` is said then.
[[nodiscard]] Record record_from(const std::string& json, const std::string& name);

/// Figures for people.
[[nodiscard]] std::string table(const Record& record);
/// The commands of gnuplot that write `svg`: the shares of trials against time.
[[nodiscard]] std::string script(const Record& record, const std::string& svg);

}  // namespace chorus::campaign
