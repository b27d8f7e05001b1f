// MSCCL XML: per-rank programs of threadblocks, read into a Schedule and written from one.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "chorus/schedule.hpp"
#include "formats/fault.hpp"

namespace chorus::formats {

/// Reads every dialect of docs/formats.md, replays the programs of all ranks on contributions and
/// writes down what went where.
///
/// The Schedule that comes back passes first_fault() and is in normal form (see normal_form()). Its
/// steps keep the order of the program: what a threadblock sends later is in a later step.
/// `where` (a file name) begins every message. Throws InputError if the text is not such a file
/// and ProgramFault if its program is wrong or beyond what a Schedule can say.
[[nodiscard]] Schedule schedule_from_msccl_xml(std::string_view text, std::string_view where);

struct MscclXmlOptions {
  /// Over how many channels (connections, each with threadblocks of its own) to spread what goes
  /// from one rank to another in one step.
  int channels = 1;
  std::string protocol = "Simple";  ///< Simple, LL or LL128: for the loader alone
  std::uint64_t min_bytes = 0;      ///< for which sizes the loader is to take it, inclusive
  std::uint64_t max_bytes = std::numeric_limits<std::int64_t>::max();
};

/// Programs that run out of place and, but for all_to_all, in place. `schedule` must be correct.
///
/// Each sending step carries the number of its Schedule step in the attribute `level`, which other
/// readers pass over; so reading it back gives normal_form(schedule), except for transfers that no
/// result depends on. Throws InputError for a barrier and for more threadblocks or steps than
/// MSCCL loads.
[[nodiscard]] std::string to_msccl_xml(const Schedule& schedule,
                                       const MscclXmlOptions& options = {});

/// The same schedule with the transfers of each step sorted by source, destination and chunk,
/// repeated ones dropped, and without empty steps.
[[nodiscard]] Schedule normal_form(Schedule schedule);

}  // namespace chorus::formats
