// The formats schedules are kept in, and how a file is told to be one.
#pragma once

#include <string_view>

namespace chorus::formats {

enum class Format {
  schedule,   ///< "chorus": a schedule of Chorus
  plan,       ///< "plan": a plan of Chorus
  msccl_xml,  ///< "msccl-xml"
  sccl,       ///< "sccl": an algorithm of SCCL (msccl-tools) in JSON
  mscclpp,    ///< "mscclpp": an execution plan of MSCCL++ in JSON; only written
};

[[nodiscard]] std::string_view name_of(Format format);
/// Throws InputError listing the known names.
[[nodiscard]] Format parse_format(std::string_view name);

/// What `text` claims to be; schedule if nothing in it tells.
[[nodiscard]] Format format_of(std::string_view text);

}  // namespace chorus::formats
