// What people read: the plan before a run, the progress during it, the accounts after it.
#pragma once

#include <string>

#include "comm.hpp"
#include "trainer.hpp"

namespace trainer {

/// "12.3 MB": powers of 1000.
[[nodiscard]] std::string human_bytes(double bytes);

/// Parameters, memory per rank by use and communication per step of every kind of rank, computed
/// without a peer and without memory.
[[nodiscard]] std::string dry_run_report(const Config& config);

/// {"version", "layout", "parameters", "sent_bytes_by_stage": [by axis]}, per step.
[[nodiscard]] std::string dry_run_json(const Config& config);

/// Volume, calls, share, exposed and hidden time by axis and collective, a histogram of message
/// sizes, and the formulas' bytes beside the counted ones. `steps`: how many the log covers.
[[nodiscard]] std::string comm_report(const Config& config, const CommLog& log, int rank, int steps,
                                      double seconds);

/// The same as JSON.
[[nodiscard]] std::string comm_json(const Config& config, const CommLog& log, int rank, int steps,
                                    double seconds);

}  // namespace trainer
