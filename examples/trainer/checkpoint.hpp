// Checkpoints: sharded, atomic, readable under any layout.
//
// DIR/step-00000100/ holds rank-0000.bin, …, by place in the grid: the parts of tensors (value and
// both moments) that each rank updates, each element once over all files; and what no other rank
// has, like what compression lost so far. A directory has its final name only when all its files
// are complete; every file ends in a checksum. Format: docs/trainer.md.
#pragma once

#include <optional>
#include <string>

#include "trainer.hpp"

namespace trainer {

/// Collective: writes the state after steps_done() and removes all but the last two checkpoints.
/// Returns the directory. Throws chorus::InputError on all ranks, naming the file that cannot be
/// written; the checkpoints before stay.
std::string save_checkpoint(Trainer<float>& trainer, const std::string& directory);

/// The last complete checkpoint in `directory`.
[[nodiscard]] std::optional<std::string> last_checkpoint(const std::string& directory);

/// Collective: restores from `path`, a checkpoint of the same model in any layout, all that the
/// next step depends on. Returns what does not go on as it was, in words: other sequences, say;
/// empty where all does. Throws chorus::InputError on all ranks for another model, a torn file, a
/// missing part, or what ranks keep to themselves where the layout or its options are others.
std::string load_checkpoint(Trainer<float>& trainer, const std::string& path);

}  // namespace trainer
