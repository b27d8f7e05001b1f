// What a layout must communicate and compute, by formula.
#pragma once

#include <array>
#include <cstdint>

#include "comm.hpp"

namespace trainer {

/// Bytes that a rank must send in one step, by axis: what CommLog counts, computed from the
/// configuration alone. The expert axis holds the exchange of row counts only; how many rows move
/// is the gate's choice.
using Volume = std::array<std::uint64_t, kAxes>;
[[nodiscard]] Volume predicted_volume(const Config& config, int rank, std::size_t element_bytes);

/// Messages in which they travel where collectives run as rings, by axis; several small segments of
/// a bucket count as one.
[[nodiscard]] Volume predicted_messages(const Config& config, int rank);

/// Parameters of the whole model, exactly.
[[nodiscard]] std::uint64_t parameters(const Model& model);

/// 2Vh + Th + L(12h² + 8h) + 2h: equation 1 of Anthony et al. (2024), which leaves out most biases.
[[nodiscard]] double parameters_by_equation_1(const Model& model);

/// Floating-point operations of the model per token, forward and backward, without recomputation:
/// 6 per parameter that multiplies (embeddings do not; the output does) + 12·L·T·h of attention,
/// counted as if every token saw all others. Of experts only the k that a token visits.
[[nodiscard]] double flops_per_token(const Model& model);

}  // namespace trainer
