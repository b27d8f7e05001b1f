// Replicas that come and go while a model is trained.
#pragma once

#include "trainer.hpp"

namespace trainer {

/// Which replica each rank of `world` is: those that were taken in have the places that nobody has.
/// Collective; `mine` is this rank's place, or -1.
[[nodiscard]] int settle_place(chorus::Communicator& world, int replicas, int mine);

/// Collective: replicas that have it give all that a step depends on to those that have not.
void share_state(chorus::Communicator& world, Trainer<float>& trainer, bool has);

/// After a step, collective: notices who has died, and takes in who has been started anew. Rank 0
/// says so.
void look_after(chorus::Communicator& world, Trainer<float>& trainer);

}  // namespace trainer
