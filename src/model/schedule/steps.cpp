#include "model/schedule/steps.hpp"

#include <algorithm>
#include <utility>

namespace chorus {

void send(Steps& steps, int step, Rank src, Rank dst, ChunkId first, int count, Action action) {
  if (step >= static_cast<int>(steps.size())) steps.resize(step + 1);
  for (int i = 0; i < count; ++i) steps[step].push_back({src, dst, first + i, action});
}

Steps reversed(const Steps& steps, Action action) {
  Steps result(steps.rbegin(), steps.rend());
  for (Step& step : result) {
    for (Transfer& transfer : step) {
      std::swap(transfer.src, transfer.dst);
      transfer.action = action;
    }
  }
  return result;
}

Steps joined(Steps first, const Steps& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

Steps there_and_back(const Steps& spread) { return joined(reversed(spread), spread); }

Steps renamed_ranks(Steps steps, const std::function<Rank(Rank)>& rename) {
  for (Step& step : steps) {
    for (Transfer& transfer : step) {
      transfer.src = rename(transfer.src);
      transfer.dst = rename(transfer.dst);
    }
  }
  return steps;
}

Steps renamed_chunks(Steps steps, const std::function<ChunkId(ChunkId)>& rename) {
  for (Step& step : steps) {
    for (Transfer& transfer : step) transfer.chunk = rename(transfer.chunk);
  }
  return steps;
}

Steps without_repeats(const Steps& steps, int world_size, int num_chunks) {
  std::vector<char> holds(static_cast<std::size_t>(world_size) * num_chunks);
  std::fill(holds.begin(), holds.begin() + num_chunks, 1);
  Steps result(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const Transfer& transfer : steps[i]) {
      char& held = holds[static_cast<std::size_t>(transfer.dst) * num_chunks + transfer.chunk];
      if (!held) result[i].push_back(transfer);
      held = 1;
    }
  }
  return result;
}

}  // namespace chorus
