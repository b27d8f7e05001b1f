// Schedules as the command reads them: ours, or other systems'.
#include <fmt/format.h>

#include "cli/cli.hpp"
#include "formats/format.hpp"
#include "formats/msccl_xml.hpp"
#include "formats/sccl_json.hpp"
#include "model/json/json.hpp"

namespace chorus {

Plan schedules_from_argument(const std::string& path) {
  using formats::Format;
  const std::string text = read_input(path);
  const std::string where = path == "-" ? "standard input" : path;
  const auto whole = [](Schedule schedule) {
    Plan plan;
    plan.world_size = schedule.world_size;
    plan.entries.emplace_back().max_bytes = UINT64_MAX;
    plan.entries.back().schedule = std::move(schedule);
    return plan;
  };
  switch (formats::format_of(text)) {
    case Format::plan:
      return plan_from_json(text, where);
    case Format::msccl_xml:
      return whole(formats::schedule_from_msccl_xml(text, where));
    case Format::sccl:
      return whole(formats::schedule_from_sccl_json(text, where));
    case Format::schedule:
    case Format::mscclpp:
      break;
  }
  return whole(schedule_from_json(text, where));
}

}  // namespace chorus
