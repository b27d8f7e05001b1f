#include "perf/report/explain.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include "base/counted.hpp"
#include "base/files/files.hpp"
#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"
#include "perf/process.hpp"

namespace chorus::perf {

int explain(const ExplainOptions& options) {
  std::vector<std::string> program = {beside_driver("chorus-perf-selection")};
  if (::access(program[0].c_str(), X_OK) != 0) {
    throw InputError(
        "--explain: there is no chorus-perf-selection next to chorus-perf: build or install it");
  }
  for (const Kind kind : options.kinds) {
    program.emplace_back(benchmark(kind).name);
    (void)parse_collective_kind(program.back());
  }
  program.insert(program.end(), {"--explain", "--ms", fmt::format("{}", options.budget_ms)});
  program.insert(program.end(), {"--sizes", fmt::format("{}", fmt::join(options.sizes, ","))});
  if (!options.json.empty()) program.insert(program.end(), {"--json", options.json});

  const std::string chorus = beside_driver("chorus");
  for (const std::string& transport : options.transports) {
    Command command;
    command.argv = {::access(chorus.c_str(), X_OK) == 0 ? chorus : "chorus", "run", "-n",
                    std::to_string(options.ranks), "--"};
    command.argv.insert(command.argv.end(), program.begin(), program.end());
    command.environment = {{"CHORUS_TRANSPORTS", transport}};
    if (!options.plan.empty()) command.environment.emplace_back("CHORUS_PLAN", options.plan);
    fmt::print(one_is_standard_output({options.json}) ? stderr : stdout, "# {} over {}\n",
               counted(options.ranks, "rank"), transport);
    std::fflush(stdout);
    if (const int code = run_to_end({command}, {"chorus run"}); code != 0) return code;
  }
  return 0;
}

}  // namespace chorus::perf
