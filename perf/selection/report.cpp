#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/counted.hpp"
#include "model/schedule/contract.hpp"
#include "perf/selection/selection.hpp"

namespace chorus::perf {

std::string text(const std::vector<Point>& points, bool explain) {
  std::string text =
      fmt::format("{:<15} {:>10}  {:<28} {:>12} {:>12} {:>7}  {}\n", "collective", "bytes",
                  "chosen", "predicted us", "measured us", "loss", "fastest");
  for (const Point& point : points) {
    const Contender& chosen = point.contenders[0];
    text += fmt::format("{:<15} {:>10}  {:<28} {:>12.2f} {:>12.2f} {:>6.1f}%  {}\n",
                        name_of(point.kind), point.size_bytes, chosen.name,
                        chosen.predicted_s * 1e6, chosen.measured_s * 1e6, point.regret() * 100,
                        point.regret() > 0 ? point.fastest().name : "");
    if (!explain) continue;
    for (const Contender& contender : point.contenders) {
      text += fmt::format("{:<15} {:>10}    {:<26} {:>12.2f} {:>12.2f}\n", "", "", contender.name,
                          contender.predicted_s * 1e6, contender.measured_s * 1e6);
    }
  }
  return text + fmt::format(
                    "{}, the chosen schedule is more than 10 % slower than the "
                    "fastest at {:.1f} % of them\n",
                    counted(std::ssize(points), "point"), share_of_errors(points, 0.10) * 100);
}

std::string json(const std::vector<Point>& points, const Circumstances& where) {
  nlohmann::ordered_json json;
  json["format"] = "chorus-selection";
  json["version"] = 1;
  json["commit"] = where.commit;
  json["command"] = where.command;
  json["date"] = where.date;
  json["machine"] = {{"cpu", where.machine.cpu},
                     {"cpus", where.machine.cpus},
                     {"memory", where.machine.memory},
                     {"kernel", where.machine.kernel},
                     {"system", where.machine.system}};
  json["ranks"] = where.ranks;
  json["hosts"] = where.hosts;
  json["share_more_than_10_percent_slower"] = share_of_errors(points, 0.10);
  for (const Point& point : points) {
    nlohmann::ordered_json entry{{"collective", name_of(point.kind)},
                                 {"bytes", point.size_bytes},
                                 {"chosen", point.chosen},
                                 {"loss", point.regret()}};
    for (const Contender& contender : point.contenders) {
      entry["contenders"].push_back({{"schedule", contender.name},
                                     {"predicted_s", contender.predicted_s},
                                     {"measured_s", contender.measured_s}});
    }
    json["points"].push_back(std::move(entry));
  }
  return json.dump(1) + "\n";
}

}  // namespace chorus::perf
