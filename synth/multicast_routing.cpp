#include "synth/multicast_routing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.hpp"
#include "base/index.hpp"
#include "model/schedule/steps.hpp"
#include "model/schedule/symmetry.hpp"
#include "synth/ordering/predict.hpp"

namespace chorus::synth {

Schedule mirrored(const Schedule& spread) {
  const bool gathers = spread.collective.kind == CollectiveKind::all_gather;
  CHORUS_CHECK(gathers || spread.collective.kind == CollectiveKind::broadcast,
               "only all_gather and broadcast have a mirror that combines");
  Schedule result = spread;
  result.collective.kind = gathers ? CollectiveKind::reduce_scatter : CollectiveKind::reduce;
  result.steps = reversed(spread.steps);
  // Within a step the order between two ranks is one in time: it turns round as well.
  for (Step& step : result.steps) std::reverse(step.begin(), step.end());
  return result;
}

Schedule split_chunks(const Schedule& schedule, int pieces) {
  if (pieces == 1) return schedule;
  Schedule result = schedule;
  result.num_chunks *= pieces;
  for (Step& step : result.steps) {
    Step whole;
    std::swap(whole, step);
    step.reserve(whole.size() * static_cast<std::size_t>(pieces));
    for (const Transfer& transfer : whole) {
      for (int piece = 0; piece < pieces; ++piece) {
        step.push_back(
            {transfer.src, transfer.dst, transfer.chunk * pieces + piece, transfer.action});
      }
    }
  }
  return result;
}

Schedule all_reduce_of(const Schedule& combine, const Schedule& spread) {
  CHORUS_CHECK(combine.num_chunks == spread.num_chunks && combine.world_size == spread.world_size,
               "both halves of an all_reduce have the same chunks");
  Schedule result = spread;
  result.collective = {CollectiveKind::all_reduce, 0};
  result.steps = joined(combine.steps, spread.steps);
  return result;
}

std::optional<Schedule> all_reduce_of_unequal(const Schedule& combine, const Schedule& spread) {
  constexpr long kMostChunks = 4096;
  const long chunks = std::lcm(long{combine.num_chunks}, long{spread.num_chunks});
  const auto pieces_of = [&](const Schedule& half) {
    return static_cast<int>(chunks / half.num_chunks);
  };
  const std::size_t transfers = num_transfers(combine) * at(pieces_of(combine)) +
                                num_transfers(spread) * at(pieces_of(spread));
  const bool equal = combine.num_chunks == spread.num_chunks;
  if (!equal && (chunks > kMostChunks || transfers > kMostSimulated)) return std::nullopt;
  Schedule whole = all_reduce_of(split_chunks(combine, pieces_of(combine)),
                                 split_chunks(spread, pieces_of(spread)));
  if (combine.name != spread.name) whole.name = combine.name + " + " + spread.name;
  return whole;
}

}  // namespace chorus::synth
