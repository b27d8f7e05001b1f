#include "synth/ordering/pipelined.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/index.hpp"

namespace chorus::synth {
namespace {

using Way = std::vector<std::tuple<std::size_t, Rank, Rank, Action>>;

/// Of each chunk: every transfer, and at which step.
std::vector<Way> ways_of(const Schedule& schedule) {
  std::vector<Way> ways(at(schedule.num_chunks));
  for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
    for (const Transfer& t : schedule.steps[s]) {
      ways[at(t.chunk)].emplace_back(s, t.src, t.dst, t.action);
    }
  }
  for (Way& way : ways) std::ranges::sort(way);
  return ways;
}

}  // namespace

Schedule pipelined(const Schedule& schedule) {
  constexpr std::size_t kOneHop = 2;  // there, and back
  if (!schedule.symmetry.empty() || schedule.steps.size() <= kOneHop) return schedule;
  std::vector<Way> ways = ways_of(schedule);
  std::map<Way, std::vector<ChunkId>> alike;
  for (ChunkId chunk = 0; chunk < schedule.num_chunks; ++chunk) {
    alike[std::move(ways[at(chunk)])].push_back(chunk);
  }
  std::size_t most = 1;
  for (const auto& [way, chunks] : alike) most = std::max(most, chunks.size());
  if (most == 1) return schedule;
  std::vector<std::size_t> starts(at(schedule.num_chunks), 0);
  for (const auto& [way, chunks] : alike) {
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      starts[at(chunks[i])] = (2 * i + 1) * most / (2 * chunks.size());
    }
  }
  Schedule result = schedule;
  result.steps.assign(schedule.steps.size() + most, {});
  for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
    for (const Transfer& t : schedule.steps[s]) {
      result.steps[s + starts[at(t.chunk)]].push_back(t);
    }
  }
  std::erase_if(result.steps, [](const Step& step) { return step.empty(); });
  for (Step& step : result.steps) {
    std::ranges::stable_sort(step, {}, &Transfer::chunk);
  }
  return result;
}

}  // namespace chorus::synth
