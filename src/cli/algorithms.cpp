// chorus algorithms: the classic schedules by name, and which collectives each serves.
#include "collectives/algorithms.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cli/cli.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

struct Served {
  std::vector<std::string_view> collectives;
  bool needs_levels = false;  ///< serves none of them without a hierarchy
};

/// Asks on 8 ranks, flat and as two hosts of four: no algorithm is particular about world sizes.
Served served_by(const Algorithm& algorithm) {
  Served served;
  bool flat = false;
  for (int i = 0; i <= static_cast<int>(CollectiveKind::barrier); ++i) {
    const auto kind = static_cast<CollectiveKind>(i);
    const bool on_flat = !algorithm.why_not({kind, 8, {}});
    if (on_flat || !algorithm.why_not({kind, 8, {4, 2}})) {
      served.collectives.push_back(name_of(kind));
    }
    flat = flat || on_flat;
  }
  served.needs_levels = !flat;
  return served;
}

std::string as_text() {
  std::string text;
  for (const Algorithm& algorithm : algorithms()) {
    const Served served = served_by(algorithm);
    text += fmt::format("{}\n  {}\n  for {}{}{}\n", algorithm.name, algorithm.summary,
                        fmt::join(served.collectives, ", "),
                        served.needs_levels ? "; needs two levels or more" : "",
                        algorithm.rank_order ? "; folds in the order of ranks" : "");
  }
  return text;
}

std::string as_json() {
  auto list = nlohmann::ordered_json::array();
  for (const Algorithm& algorithm : algorithms()) {
    const Served served = served_by(algorithm);
    list.push_back({{"name", algorithm.name},
                    {"summary", algorithm.summary},
                    {"collectives", served.collectives},
                    {"needs_levels", served.needs_levels},
                    {"rank_order", algorithm.rank_order}});
  }
  return list.dump(2) + "\n";
}

}  // namespace

void add_algorithms(CLI::App& app, int& /*exit_code*/) {
  auto json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand("algorithms", "List the classic schedules by name");
  command->add_flag("--json", *json, "Print JSON");
  command->footer("Example: chorus algorithms --json");
  command->callback([json] { print(*json ? as_json() : as_text()); });
}

}  // namespace chorus
