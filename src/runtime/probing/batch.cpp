#include "runtime/probing/batch.hpp"

#include <algorithm>

#include "base/index.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

using probing::Flow;

constexpr std::uint32_t kMostBatch = 1 << 16;
/// That a bottleneck should see of an experiment.
constexpr double kWantedBytes = 2 << 20;

}  // namespace

void write(BlobWriter& blob, const ProbeBatch& batch) {
  blob.u32(static_cast<std::uint32_t>(batch.size()));
  for (const ProbeQuestion& question : batch) {
    blob.u32(static_cast<std::uint32_t>(question.kind));
    blob.u32(question.ms);
    blob.u32(question.network);
    blob.u32(static_cast<std::uint32_t>(question.flows.size()));
    for (const Flow& flow : question.flows) {
      blob.u32(static_cast<std::uint32_t>(flow.src));
      blob.u32(static_cast<std::uint32_t>(flow.dst));
    }
  }
}

ProbeBatch read_batch(std::span<const std::byte> bytes, std::uint32_t hosts,
                      std::uint32_t networks) {
  BlobReader blob(bytes);
  ProbeBatch batch;
  const std::uint32_t count = blob.u32();
  bool sound = count <= kMostBatch;
  for (std::uint32_t i = 0; i < count && sound; ++i) {
    ProbeQuestion& question = batch.emplace_back();
    question.kind = static_cast<ProbeQuestion::Kind>(blob.u32());
    question.ms = blob.u32();
    question.network = blob.u32();
    const std::uint32_t flows = blob.u32();
    sound = blob.ok() && question.kind <= ProbeQuestion::Kind::scout &&
            question.ms <= ProbeQuestion::kLongestMs && question.network <= networks &&
            flows <= kMostBatch;
    for (std::uint32_t f = 0; f < flows && sound; ++f) {
      const std::uint32_t src = blob.u32();
      const std::uint32_t dst = blob.u32();
      sound = blob.ok() && src < hosts && dst < hosts && src != dst;
      if (sound) question.flows.push_back({static_cast<int>(src), static_cast<int>(dst)});
    }
  }
  if (!sound || !blob.ok() || !blob.at_end()) {
    throw BootstrapError("rank 0 asks for a malformed probe");
  }
  return batch;
}

std::uint32_t duration_ms(std::span<const Flow> flows, std::span<const double> rates, int hosts) {
  constexpr std::uint32_t kShortest = ProbeQuestion::kShortestMs;
  constexpr std::uint32_t kLongest = ProbeQuestion::kLongestMs;
  std::vector<double> out(at(hosts), 0), in(at(hosts), 0);
  for (std::size_t f = 0; f < flows.size(); ++f) {
    out[at(flows[f].src)] += rates[f];
    in[at(flows[f].dst)] += rates[f];
  }
  double slowest = kWantedBytes * 1e3 / kShortest;
  for (const Flow& flow : flows) {
    slowest = std::min(slowest, std::max(out[at(flow.src)], in[at(flow.dst)]));
  }
  const double wanted_ms = 1e3 * kWantedBytes / std::max(slowest, 1.0);
  return static_cast<std::uint32_t>(std::clamp<double>(wanted_ms, kShortest, kLongest));
}

}  // namespace chorus
