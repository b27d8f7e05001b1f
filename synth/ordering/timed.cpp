#include "synth/ordering/timed.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/index.hpp"

namespace chorus::synth {
namespace {

/// Transfers that travel together: of one step and lane, their chunks one after the other.
struct Message {
  int step = 0;
  Rank src = 0;
  Rank dst = 0;
  Action action = Action::copy;
  ChunkId first = 0;
  int count = 0;
  double begin_s = 0;
  double end_s = 0;

  [[nodiscard]] auto lane() const { return std::tuple(src, dst, action); }
};

/// In the order of the schedule, lane by lane, whose transfers end one after the other.
std::vector<Message> messages_of(const Simulation& simulation) {
  std::vector<TimelineEntry> entries = simulation.timeline;
  std::ranges::sort(entries, {}, [](const TimelineEntry& entry) {
    const Transfer& t = entry.transfer;
    return std::tuple(entry.step, t.src, t.dst, t.action, entry.end_s, t.chunk);
  });
  std::vector<Message> messages;
  for (const TimelineEntry& entry : entries) {
    const Transfer& t = entry.transfer;
    if (!messages.empty()) {
      Message& last = messages.back();
      if (last.step == entry.step && last.lane() == std::tuple(t.src, t.dst, t.action) &&
          last.first + last.count == t.chunk) {
        ++last.count;
        last.begin_s = std::min(last.begin_s, entry.begin_s);
        last.end_s = std::max(last.end_s, entry.end_s);
        continue;
      }
    }
    messages.push_back(
        {entry.step, t.src, t.dst, t.action, t.chunk, 1, entry.begin_s, entry.end_s});
  }
  return messages;
}

double median_length(const std::vector<Message>& messages) {
  std::vector<double> lengths;
  for (const Message& message : messages) lengths.push_back(message.end_s - message.begin_s);
  const auto middle = lengths.begin() + static_cast<std::ptrdiff_t>(lengths.size() / 2);
  std::nth_element(lengths.begin(), middle, lengths.end());
  return *middle;
}

/// Numbers steps by the clock, and so that every message finds at its source what it found before.
class Numbering {
 public:
  Numbering(const std::vector<Message>& messages, std::size_t num_chunks)
      : messages_(messages), num_chunks_(num_chunks), later_(messages.size()) {
    for (std::size_t i = 0; i < messages.size(); ++i) {
      each_chunk(messages[i], [&](ChunkId chunk) {
        places_[place(messages[i].src, chunk)].read.push_back(i);
        places_[place(messages[i].dst, chunk)].arrivals.push_back(i);
      });
    }
    waits_.assign(messages.size(), 0);
    std::map<std::tuple<Rank, Rank, Action>, std::size_t> last;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      each_chunk(messages[i], [&](ChunkId chunk) { add_constraints(i, chunk); });
      const auto [before, is_first] = last.try_emplace(messages[i].lane(), i);
      if (!is_first) constrain(before->second, i, false);
      before->second = i;
    }
  }

  /// By message. Empty if messages of one step are exchanged, so that none can come before the
  /// other.
  std::vector<int> run(double length_s) {
    using Item = std::pair<double, std::size_t>;
    std::priority_queue<Item, std::vector<Item>, std::greater<>> ready;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (waits_[i] == 0) ready.emplace(messages_[i].begin_s, i);
    }
    std::vector<int> steps(messages_.size(), 0);
    std::map<std::tuple<Rank, Rank, Action>, std::size_t> last;
    std::size_t numbered = 0;
    for (; !ready.empty(); ++numbered) {
      const std::size_t i = ready.top().second;
      ready.pop();
      const double clock = length_s > 0 ? std::min(messages_[i].begin_s / length_s, kLastStep) : 0;
      steps[i] = std::max(steps[i], static_cast<int>(clock));
      // Within a step a lane goes by chunk, and neighbours are one message.
      const auto [before, is_first] = last.try_emplace(messages_[i].lane(), i);
      const Message& sent = messages_[before->second];
      if (!is_first && steps[before->second] == steps[i] &&
          messages_[i].first <= sent.first + sent.count) {
        ++steps[i];
      }
      before->second = i;
      for (const auto& [next, strictly] : later_[i]) {
        steps[next] = std::max(steps[next], steps[i] + (strictly ? 1 : 0));
        if (--waits_[next] == 0) ready.emplace(messages_[next].begin_s, next);
      }
    }
    return numbered == messages_.size() ? steps : std::vector<int>{};
  }

 private:
  static constexpr double kLastStep = 1e6;

  struct Place {
    std::vector<std::size_t> arrivals, read;
  };

  template <class Do>
  static void each_chunk(const Message& message, Do apply) {
    for (int i = 0; i < message.count; ++i) apply(message.first + i);
  }
  [[nodiscard]] std::uint64_t place(Rank rank, ChunkId chunk) const {
    return at(rank) * num_chunks_ + at(chunk);
  }

  void constrain(std::size_t first, std::size_t then, bool strictly) {
    later_[first].emplace_back(then, strictly);
    ++waits_[then];
  }

  void add_constraints(std::size_t i, ChunkId chunk) {
    const Message& message = messages_[i];
    for (const std::size_t other : places_[place(message.src, chunk)].arrivals) {
      if (messages_[other].step < message.step) constrain(other, i, true);
    }
    const Place& destination = places_[place(message.dst, chunk)];
    for (const std::size_t other : destination.arrivals) {
      // Sums may come in any order.
      const bool sums =
          message.action == Action::reduce && messages_[other].action == Action::reduce;
      if (!sums && messages_[other].step < message.step) constrain(other, i, true);
    }
    for (const std::size_t other : destination.read) {
      if (messages_[other].step <= message.step) constrain(other, i, false);
    }
  }

  const std::vector<Message>& messages_;
  std::size_t num_chunks_;
  std::unordered_map<std::uint64_t, Place> places_;
  std::vector<std::vector<std::pair<std::size_t, bool>>> later_;  // strictly: in a later step
  std::vector<int> waits_;  // for so many that are not numbered
};

}  // namespace

Schedule timed(const Schedule& schedule, const Simulation& simulation) {
  CHORUS_CHECK(schedule.symmetry.empty(), "a symmetric schedule is written out first");
  const std::vector<Message> messages = messages_of(simulation);
  if (messages.empty()) return schedule;
  const std::vector<int> steps =
      Numbering(messages, at(schedule.num_chunks)).run(median_length(messages));
  if (steps.empty()) return schedule;
  Schedule result = schedule;
  result.steps.assign(at(*std::ranges::max_element(steps)) + 1, {});
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    for (ChunkId chunk = message.first; chunk < message.first + message.count; ++chunk) {
      result.steps[at(steps[i])].push_back({message.src, message.dst, chunk, message.action});
    }
  }
  std::erase_if(result.steps, [](const Step& step) { return step.empty(); });
  for (Step& step : result.steps) std::ranges::stable_sort(step, {}, &Transfer::chunk);
  return result;
}

}  // namespace chorus::synth
