// Checkpoints: sharded, atomic, readable under any layout.
//
// DIR/step-00000100/ holds rank-0000.bin, …: the parts of tensors (value and both moments) that
// each rank updates, each element once over all files. A directory has its final name only when all
// its files are complete; every file ends in a checksum. Format: docs/trainer.md.
#pragma once

#include <optional>
#include <string>

#include "trainer.hpp"

namespace trainer {

/// Collective: writes the state after steps_done() and removes all but the last two checkpoints.
/// Returns the directory. Throws chorus::InputError naming the file that cannot be written.
std::string save_checkpoint(Trainer<float>& trainer, const std::string& directory);

/// The last complete checkpoint in `directory`.
[[nodiscard]] std::optional<std::string> last_checkpoint(const std::string& directory);

/// Collective: restores values, moments and the step from `path`, a checkpoint of the same model in
/// any layout. Throws chorus::InputError for another model, a torn file or a missing part.
void load_checkpoint(Trainer<float>& trainer, const std::string& path);

}  // namespace trainer
