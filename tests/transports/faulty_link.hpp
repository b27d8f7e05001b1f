// A link that misbehaves on request, for tests of whoever uses links.
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "chorus/error.hpp"
#include "transports/link/link.hpp"

namespace chorus::testing {

/// What goes wrong with outgoing puts, counted over all channels from 0.
struct Faults {
  std::optional<std::uint64_t> drop = std::nullopt;         ///< this put vanishes
  std::optional<std::uint64_t> corrupt = std::nullopt;      ///< one bit of its payload flips
  std::optional<std::uint64_t> corrupt_tag = std::nullopt;  ///< its tag changes
  std::optional<std::uint64_t> close = std::nullopt;  ///< it throws LinkError, as all do after it
  std::optional<std::uint64_t> delay =
      std::nullopt;                       ///< it, and all after it on its channel, wait…
  std::chrono::milliseconds delay_by{0};  ///< …so long
};

/// Forwards to `inner` and spoils what `faults` names. Like every link it is used by one thread.
/// Puts are copied, so that they can be changed and kept; each counts as released when the copy's
/// own put has been.
class FaultyLink final : public Link {
 public:
  FaultyLink(std::unique_ptr<Link> inner, int num_channels, const Faults& faults)
      : inner_(std::move(inner)),
        faults_(faults),
        channels_(static_cast<std::size_t>(num_channels)) {}

  bool try_put(std::span<const std::byte> src, std::size_t offset, ChannelId channel,
               std::uint32_t tag) override {
    const std::uint64_t number = puts_;
    if (closed_ || faults_.close == number) {
      closed_ = true;
      throw LinkError("closed by the test");
    }
    Channel& state = channels_[static_cast<std::size_t>(channel)];
    if (state.waiting.size() >= kMaxWaiting) return progress(), false;
    ++puts_;
    ++state.made;
    if (faults_.drop == number) {
      ++state.dropped;
      return true;
    }
    Put put{{src.begin(), src.end()}, offset, tag, {}};
    if (faults_.corrupt == number && !put.bytes.empty()) {
      put.bytes[put.bytes.size() / 2] ^= std::byte{0x10};
    }
    if (faults_.corrupt_tag == number) put.tag ^= 0x8000;
    if (faults_.delay == number) put.not_before = Clock::now() + faults_.delay_by;
    state.waiting.push_back(std::move(put));
    pass_on();
    return true;
  }

  std::uint64_t released(ChannelId channel) const override {
    const Channel& state = channels_[static_cast<std::size_t>(channel)];
    return state.passed.empty() && state.waiting.empty()
               ? state.made
               : inner_->released(channel) + state.dropped;
  }
  std::uint64_t arrivals(ChannelId channel) override { return inner_->arrivals(channel); }
  std::uint32_t tag(ChannelId channel, std::uint64_t index) const override {
    return inner_->tag(channel, index);
  }
  bool flush() override { return inner_->flush(); }

  bool progress() override {
    if (closed_) throw LinkError("closed by the test");
    const bool idle = inner_->progress();
    pass_on();
    bool empty = true;
    for (const Channel& state : channels_) empty = empty && state.waiting.empty();
    return idle && empty && inner_->progress();
  }
  std::span<std::byte> region() override { return inner_->region(); }
  /// None: what is written there passes no fault.
  std::span<std::byte> peer_region() override { return {}; }
  std::string_view transport() const override { return inner_->transport(); }
  PostedReceives* posted_receives() override { return inner_->posted_receives(); }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::size_t kMaxWaiting = 64;

  struct Put {
    std::vector<std::byte> bytes;
    std::size_t offset;
    std::uint32_t tag;
    Clock::time_point not_before;
  };
  struct Channel {
    std::deque<Put> waiting;
    std::deque<Put> passed;  // the inner link may still read their bytes
    std::uint64_t made = 0;
    std::uint64_t dropped = 0;
    std::uint64_t freed = 0;  // puts that have left `passed`
  };

  void pass_on() {
    for (std::size_t c = 0; c < channels_.size(); ++c) {
      Channel& state = channels_[c];
      const auto channel = static_cast<ChannelId>(c);
      while (!state.waiting.empty() && state.waiting.front().not_before <= Clock::now()) {
        const Put& put = state.waiting.front();
        if (!inner_->try_put(put.bytes, put.offset, channel, put.tag)) break;
        state.passed.push_back(std::move(state.waiting.front()));
        state.waiting.pop_front();
      }
      for (; state.freed < inner_->released(channel); ++state.freed) state.passed.pop_front();
    }
  }

  const std::unique_ptr<Link> inner_;
  const Faults faults_;
  std::vector<Channel> channels_;
  std::uint64_t puts_ = 0;
  bool closed_ = false;
};

}  // namespace chorus::testing
