// Failures of Chorus itself.
#pragma once

namespace chorus {
/// Prints the broken promise and aborts, in Release too.
[[noreturn]] void check_failed(const char* condition, const char* why, const char* file, int line);
}  // namespace chorus

/// For promises that only a defect in Chorus can break. What the user or the world can break
/// throws a chorus::Error instead.
#define CHORUS_CHECK(condition, why) \
  ((condition) ? void(0) : ::chorus::check_failed(#condition, why, __FILE__, __LINE__))
