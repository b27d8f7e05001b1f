// Files that a run leaves behind: whether they can be written is known before it trains, and they
// are whole or not there.
#pragma once

#include <initializer_list>
#include <string>

namespace trainer {

/// Throws chorus::InputError with the cause where `path` cannot be a file that is written.
void check_output(const std::string& path);

/// check_output() of each path that is not empty. Throws chorus::InputError, too, where two of them
/// are one regular file, which could hold but the last.
void check_outputs(std::initializer_list<std::string> paths);

/// Makes the directory `path` of checkpoints where there is none. Throws chorus::InputError with
/// the cause where nothing can be added to it.
void check_folder(const std::string& path);

/// Replaces the file at `path` once all of `text` is beside it; what was there stays where that
/// fails. What is no regular file (a pipe, a device), or stands in a directory that lets nothing be
/// added, is written where it is. Throws chorus::InputError with the cause.
void write_output(const std::string& path, const std::string& text);

/// Of the timeline that is written to `trace`. Throws chorus::InputError where it would be `trace`
/// itself.
[[nodiscard]] std::string picture_of(const std::string& trace);

}  // namespace trainer
