// Data that shows whether it came where it was sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "device/driver_api.hpp"

namespace chorus::cuda {

/// No word is at another place too, or under another seed.
void fill_pattern(std::span<std::uint64_t> words, std::uint64_t seed);
/// The offset in bytes of the first word that is not the pattern's.
[[nodiscard]] std::optional<std::size_t> first_damaged(std::span<const std::uint64_t> words,
                                                       std::uint64_t seed);

/// Waits until the stream is idle. False after the timeout; throws DeviceError if it failed.
[[nodiscard]] bool finishes_within(const Api& api, StreamHandle stream, double timeout_s);

}  // namespace chorus::cuda
