// Measures and proves what every two GPUs of this machine tell each other directly.
#pragma once

#include <string>
#include <vector>

#include "device/driver/driver_api.hpp"

namespace chorus::cuda {

/// As NVML writes it: "GPU-…".
[[nodiscard]] std::string uuid_text(const Uuid& uuid);

/// What happens when GPU `from` writes into the memory of GPU `to`.
struct PeerWay {
  int from = 0;  ///< the driver's numbers
  int to = 0;
  bool offered = false;   ///< the driver says that there is access
  std::string fault;      ///< why not to use it although it is offered; empty: data arrived intact
  double gb_s = 0;        ///< of 16 MiB copies; 0: not measured
  double latency_us = 0;  ///< between 8-byte copies in one stream

  [[nodiscard]] bool usable() const { return offered && fault.empty(); }
};

struct PeerSurvey {
  std::vector<std::string> uuids;  ///< by number: uuid_text()
  std::vector<PeerWay> ways;       ///< ordered by from, to
};

/// Tries every ordered pair. Access that is offered is proven by a round trip: patterns that differ
/// in every word, sizes from one word to 4 MiB at odd offsets, pushed by the source and pulled by
/// the destination; under an IOMMU or with ACS redirecting, some machines lose or change such data
/// and report nothing. A copy that does not end within `timeout_s` is a fault, too, and ends the
/// survey: pairs after it are missing. Takes some 40 MiB of each GPU. Throws DeviceError if a GPU
/// cannot be used at all.
[[nodiscard]] PeerSurvey survey_peers(const Api& api, double timeout_s = 10);

}  // namespace chorus::cuda
