// How near libraries come to what the cables of an emulated cluster allow.
#pragma once

#include <string>

#include "perf/report/table.hpp"

namespace chorus::perf {

/// For each row with a bound: the bound, and of each library the time and bound/time, which headers
/// alone keep at 95.6 %. Empty if no row has a bound.
[[nodiscard]] std::string bound_table(const Report& report, Style style);

/// True if this machine's cores and not the emulated cables limit a row of Chorus: cables
/// kFasterCables times as fast take less than half of the time off. False where that was not
/// measured.
[[nodiscard]] bool cores_limit(const Row& row);

/// Where three clusters and more have rows with a bound: by collective and size median, fifth
/// percentile and worst of bound/time of each library over the clusters, of the first library's
/// time over the best peer's, and with several rounds of their spread; then the same without the
/// rows that cores limit. Else empty.
[[nodiscard]] std::string share_table(const Report& report, Style style);

}  // namespace chorus::perf
