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

std::uint32_t duration_ms(std::span<const Flow> flows, const probing::HostTree& known) {
  constexpr double kShortest = ProbeQuestion::kShortestMs;
  constexpr double kLongest = ProbeQuestion::kLongestMs;
  const auto limits = probing::limits_of(known, flows);
  const std::vector<double> rates = probing::fair_rates(limits, flows.size());
  double wanted_ms = kShortest;
  for (const probing::Limit* bottleneck : probing::fullest_limits(limits, rates)) {
    const double load = probing::load_of(*bottleneck, rates);
    wanted_ms = std::max(wanted_ms, 1e3 * kWantedBytes / std::max(load, 1.0));
  }
  return static_cast<std::uint32_t>(std::min(wanted_ms, kLongest));
}

}  // namespace chorus
