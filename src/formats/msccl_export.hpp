// A Schedule as programs of threadblocks, before they are written. For formats/ only.
#pragma once

#include "chorus/schedule.hpp"
#include "formats/msccl_program.hpp"
#include "formats/msccl_xml.hpp"

namespace chorus::formats {

/// Programs that need two messages in flight per connection. Throws InputError for a wrong schedule
/// and for a barrier.
[[nodiscard]] MscclAlgo msccl_programs(const Schedule& schedule, const MscclXmlOptions& options);

/// How MSCCL and MSCCL++ write it: i, o or s.
[[nodiscard]] inline char letter(Buffer buffer) {
  return buffer == Buffer::input ? 'i' : buffer == Buffer::output ? 'o' : 's';
}

}  // namespace chorus::formats
