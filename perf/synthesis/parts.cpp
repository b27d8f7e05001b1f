// The list of what is measured, in the order of the table.
#include <array>

#include "perf/synthesis/rows.hpp"

namespace chorus::perf {
namespace {

constexpr auto kParts = std::to_array<SynthesisPart>({
#ifdef CHORUS_HAVE_Z3
    {"dgx1", "every instance that SCCL publishes for the DGX-1", measure_dgx1},
    {"frontier", "the frontier of the DGX-1's all_gather, with proofs", measure_frontier},
    {"64-ranks", "schedules of 64 ranks, optimal in steps and bytes", measure_64_ranks},
#endif
    {"plans", "whole plans for six machines and clusters, against the limits", measure_plans},
    {"random", "200 wirings with link speeds over a range of ten", measure_random},
    {"cluster", "a plan for 1,024 GPUs in an oversubscribed fat tree", measure_cluster},
});

}  // namespace

std::span<const SynthesisPart> synthesis_parts() { return kParts; }

}  // namespace chorus::perf
