// A rank's flight record in the form in which torch's flight recorder leaves it.
#pragma once

#include <string>

#include "cli/flight/flight_record.hpp"

namespace chorus {

/// The pickle that torch's analyser (torchfrtrace; torch.distributed.flight_recorder.fr_trace)
/// reads: the collectives of `flight`, as those of one group of ranks 0 to world_size - 1. Messages
/// are left out. The calls are named as NCCL's, the only ones that torch before 2.15 takes.
[[nodiscard]] std::string torch_trace(const Flight& flight);

}  // namespace chorus
