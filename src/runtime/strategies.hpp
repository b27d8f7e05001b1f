// The classic schedules as strategies of the synthesizer, so that a plan is never worse than they.
#pragma once

#include <vector>

#include "synth/plan.hpp"

namespace chorus {

/// One strategy "classic": every algorithm that serves the task, with the hierarchy of the network
/// where ranks are numbered along it.
[[nodiscard]] synth::Strategy classic_strategy();

/// Decompositions of the literature under their own names, for those who ask for one of them alone;
/// "classic" has their schedules too. "blueconnect": rings level by level (Cho et al., MLSys 2019);
/// "plink": one leader per group of near ranks speaks for it (after Luo et al., MLSys 2020).
[[nodiscard]] std::vector<synth::Strategy> decompositions();

}  // namespace chorus
