// Drafts: files that become another one by a rename once they are whole, so that whoever reads sees
// the old file or the new one.
#pragma once

#include <filesystem>

namespace chorus {

/// Where this process writes what is to become `file`: beside it, with the process's number.
[[nodiscard]] std::filesystem::path draft_of(const std::filesystem::path& file);

/// Removes the drafts of `file` whose writers were killed: their process is gone, and they are
/// older than an hour, for a writer on another host that shares the directory is unknown here. For
/// directories that are ours alone: elsewhere such a name may be somebody's own file. Throws
/// nothing.
void remove_stale_drafts(const std::filesystem::path& file) noexcept;

}  // namespace chorus
