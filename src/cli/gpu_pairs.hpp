// What was measured between GPUs, put beside what NVML says of them.
#pragma once

#include <string>

#include "device/driver/peer_probe.hpp"
#include "topology/discover/nvml/nvml.hpp"

namespace chorus {

/// Marks access that was offered and did not keep its promise as broken, so that add_nvml() avoids
/// it and names the pair. GPUs are matched by their UUIDs; others are left alone.
void mark_broken(NvmlReport& report, const cuda::PeerSurvey& survey);

/// One line per pair: rate and latency, or why it is not used.
[[nodiscard]] std::string text_of(const cuda::PeerSurvey& survey);

}  // namespace chorus
