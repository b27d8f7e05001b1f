#include "cli/gpu_pairs.hpp"

#include <fmt/format.h>

#include <iterator>

namespace chorus {

void mark_broken(NvmlReport& report, const cuda::PeerSurvey& survey) {
  const auto number_of = [&](int device) {
    for (std::size_t i = 0; i < report.gpus.size(); ++i) {
      if (report.gpus[i].uuid == survey.uuids.at(static_cast<std::size_t>(device))) {
        return static_cast<int>(i);
      }
    }
    return -1;
  };
  for (const cuda::PeerWay& way : survey.ways) {
    const int from = number_of(way.from);
    const int to = number_of(way.to);
    if (!way.offered || way.usable() || from < 0 || to < 0) continue;
    NvmlGpu& gpu = report.gpus[static_cast<std::size_t>(from)];
    gpu.peers.resize(report.gpus.size());
    NvmlPeer& peer = gpu.peers[static_cast<std::size_t>(to)];
    peer.read = peer.write = PeerAccess::broken;
  }
}

std::string text_of(const cuda::PeerSurvey& survey) {
  std::string text;
  for (const cuda::PeerWay& way : survey.ways) {
    fmt::format_to(std::back_inserter(text), "GPU {} -> GPU {}: ", way.from, way.to);
    if (!way.offered) {
      text += "no peer access\n";
    } else if (!way.fault.empty()) {
      fmt::format_to(std::back_inserter(text), "broken, not used: {}\n", way.fault);
    } else {
      fmt::format_to(std::back_inserter(text), "{:.4g} GB/s, {:.3g} us\n", way.gb_s,
                     way.latency_us);
    }
  }
  return text;
}

}  // namespace chorus
