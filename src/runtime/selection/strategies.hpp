// The classic schedules as strategies of the synthesizer, so that a plan is never worse than they.
#pragma once

#include "synth/plan.hpp"

namespace chorus {

/// One strategy "classic": every algorithm that serves the task, with the hierarchy of the network
/// where ranks are numbered along it.
[[nodiscard]] synth::Strategy classic_strategy();

}  // namespace chorus
