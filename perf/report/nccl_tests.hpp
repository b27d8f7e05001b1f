// Results in the form in which nccl-tests prints them, for people and scripts that read those.
#pragma once

#include <string>

#include "perf/benchmark.hpp"
#include "perf/report/report.hpp"

namespace chorus::perf {

/// Whether nccl-tests knows such a test.
[[nodiscard]] bool has_nccl_tests_form(Kind kind);

/// For each collective, place and library what a program of nccl-tests would have printed:
/// comments, one line per size, the footer with the average bus bandwidth. Both reports are of the
/// same settings but for the placement. What could not be measured reads N/A, with the reason in a
/// comment. Unlike there, a time is the median of iterations.
[[nodiscard]] std::string nccl_tests_text(const Report& out_of_place, const Report& in_place,
                                          int root);

}  // namespace chorus::perf
