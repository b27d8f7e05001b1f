#include "runtime/selection/synthesize.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/counted.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "model/json/json.hpp"
#include "runtime/selection/strategies.hpp"
#include "synth/packing.hpp"
#include "synth/plan.hpp"

namespace chorus {
namespace {

constexpr std::size_t kPartBytes = std::size_t{1} << 19;  // of one exchange, which carries 1 MiB
constexpr std::size_t kMostParts = 32;
// From a few words, where messages count, to where only bytes do.
constexpr std::uint64_t kSizes[] = {64, 2 << 10, 64 << 10, 2 << 20, 64 << 20};

/// Plans that this process has made, the latest last: a program splits its world into the same
/// parts again and again, and each would be planned for anew (0.4 s for 4 hosts).
class PlanCache {
 public:
  /// Never destroyed: a thread may be planning while the process exits.
  static PlanCache& get() {
    static auto* const cache = new PlanCache;
    return *cache;
  }

  std::optional<std::string> find(const Topology& topology, int poll_us) {
    const std::lock_guard lock(mutex_);
    const auto at = std::ranges::find_if(plans_, [&](const Made& made) {
      return made.poll_us == poll_us && made.topology == topology;
    });
    if (at == plans_.end()) return std::nullopt;
    std::rotate(at, at + 1, plans_.end());
    return plans_.back().text;
  }

  void keep(const Topology& topology, int poll_us, const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (plans_.size() == kMost) plans_.erase(plans_.begin());
    plans_.push_back({topology, poll_us, text});
  }

 private:
  static constexpr std::size_t kMost = 16;

  struct Made {
    Topology topology;
    int poll_us;
    std::string text;
  };
  std::mutex mutex_;
  std::vector<Made> plans_;
};

/// Looks, while this rank synthesizes, whether nobody needs it any more: one of the others has died
/// or left, or this rank was told to stop.
class Lookout {
 public:
  Lookout(Control& control, const std::string& group, const std::stop_token& stop)
      : thread_(
            [this, &control, &group](const std::stop_token& end) { watch(control, group, end); }),
        on_stop_(stop, [this] { failed_ = true; }) {}
  [[nodiscard]] const std::atomic<bool>& failed() const { return failed_; }

 private:
  void watch(Control& control, const std::string& group, const std::stop_token& end) {
    constexpr auto kEvery = std::chrono::milliseconds(20);
    std::unique_lock lock(mutex_);
    while (!end.stop_requested() && !failed_) {
      control.poll();
      failed_ = control.verdict(group).has_value();
      ended_.wait_for(lock, end, kEvery, [] { return false; });
    }
  }

  std::atomic<bool> failed_ = false;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;  // uses the others
  std::stop_callback<std::function<void()>> on_stop_;
};

/// Empty if there is none, or the group has failed meanwhile.
std::string plan_text(Control& control, const GroupPlace& place, const Topology& topology,
                      const Options& options, const std::stop_token& stop) {
  if (auto made = PlanCache::get().find(topology, options.poll_us)) return std::move(*made);
  const Lookout lookout(control, place.key, stop);
  synth::Budget budget;
  budget.stop = &lookout.failed();
  const auto start = synth::Budget::Clock::now();
  budget.deadline = start + std::chrono::milliseconds(options.synthesis_ms);
  std::vector<synth::Strategy> strategies = {classic_strategy()};
  for (synth::Strategy& strategy : synth::built_in_strategies()) {
    strategies.push_back(std::move(strategy));
  }
  try {
    synth::PlanOptions plan_options;
    plan_options.sizes.assign(std::begin(kSizes), std::end(kSizes));
    plan_options.may_leave_out = true;  // classic schedules serve what is left open
    plan_options.step_s = options.poll_us * 1e-6;
    std::map<CollectiveKind, double> least_s_per_byte;
    plan_options.limit = [&](Collective collective, double size_bytes) {
      const auto [known, is_new] = least_s_per_byte.try_emplace(collective.kind, 0);
      if (is_new) known->second = synth::least_by_cuts(topology, collective);
      return known->second * size_bytes;
    };
    synth::Planned planned = synth::make_plan(topology, plan_options, strategies, budget);
    if (lookout.failed()) return {};
    if (planned.plan.entries.empty()) {
      throw SynthesisError("the time was too short (CHORUS_SYNTHESIS_MS)");
    }
    planned.plan.topology = {};
    std::string text = to_json(planned.plan);
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(synth::Budget::Clock::now() - start)
            .count();
    log(LogLevel::info, {},
        fmt::format("synthesized {} for '{}' in {} ms{}",
                    counted(std::ssize(planned.plan.entries), "schedule"), topology.name, ms,
                    planned.interrupted ? "; the time was too short for all strategies" : ""));
    if (text.size() <= kMostParts * kPartBytes) {
      if (!planned.interrupted) PlanCache::get().keep(topology, options.poll_us, text);
      return text;
    }
    log(LogLevel::warn, {},
        "the synthesized plan is too large to hand round; classic schedules run instead (use a "
        "plan file: chorus synth, CHORUS_PLAN)");
  } catch (const SynthesisError& error) {
    if (lookout.failed()) return {};
    log(LogLevel::warn, {},
        fmt::format("nothing synthesized, classic schedules run instead: {}", error.what()));
  }
  return {};
}

}  // namespace

Plan synthesize_together(Control& control, const GroupPlace& place, const Topology& topology,
                         const Options& options, const std::stop_token& stop) {
  std::string text;
  if (place.rank == 0) text = plan_text(control, place, topology, options, stop);
  const auto from_rank0 = [&](const std::string& what, std::span<const std::byte> blob) {
    const Table all =
        control.exchange(fmt::format("{}/synthesis/{}", place.key, what), place.members,
                         place.rank == 0 ? blob : std::span<const std::byte>(),
                         Control::kNoDeadlineMs, place.key, [&] {
                           if (stop.stop_requested()) throw Error("a plan is no longer needed");
                         });
    return std::vector<std::byte>(all[0].begin(), all[0].end());
  };
  std::uint64_t size = text.size();
  const std::vector<std::byte> said = from_rank0("size", std::as_bytes(std::span(&size, 1)));
  if (said.size() != sizeof size) {
    throw BootstrapError("rank 0 says nothing of the plan it made: another version of Chorus?");
  }
  std::memcpy(&size, said.data(), sizeof size);
  if (size > kMostParts * kPartBytes) {
    throw BootstrapError(fmt::format("rank 0 announces a plan of {} bytes", size));
  }
  std::string whole;
  for (std::size_t part = 0; part * kPartBytes < size; ++part) {
    const std::string_view mine =
        place.rank == 0 ? std::string_view(text).substr(part * kPartBytes, kPartBytes) : "";
    const auto bytes = from_rank0(fmt::format("{}", part), std::as_bytes(std::span(mine)));
    whole.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  if (whole.size() != size) {
    throw BootstrapError(fmt::format("{} of {} bytes of rank 0's plan came", whole.size(), size));
  }
  return whole.empty() ? Plan{} : plan_from_json(whole, "the plan of rank 0");
}

}  // namespace chorus
