// Traffic in both directions of a link, for tests that disturb it.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>
#include <vector>

#include "chorus/memory.hpp"
#include "transports/ends.hpp"

namespace chorus::testing {

/// random_traffic() as a LinkConfig must provide for it.
struct Traffics {
  static constexpr int kChannels = 2;
  static constexpr std::uint64_t kSlots = 4;
  static constexpr std::size_t kSlot = 160 * 1024;  // beyond what is striped
  static LinkConfig config() {
    return {.region_bytes = kChannels * kSlots * kSlot,
            .num_channels = 2 * kChannels,  // data, and credits beside it
            .max_outstanding = kSlots};
  }
};

/// Where the bytes of puts lie until they are released: then they are spoilt, so that who reads
/// them too late is found out.
class Sources {
 public:
  /// `direct`: memory of chorus::allocate().
  Sources(bool direct, std::uint64_t before) : before_(before) {
    constexpr std::size_t bytes = Traffics::kChannels * Traffics::kSlots * Traffics::kSlot;
    if (direct) {
      of_library_.resize(bytes);
      memory_ = of_library_;
    } else {
      own_.resize(bytes);
      memory_ = own_;
    }
  }
  [[nodiscard]] std::span<std::byte> at(int channel, std::uint64_t put) {
    return memory_.subspan(
        (static_cast<std::size_t>(channel) * Traffics::kSlots + put % Traffics::kSlots) *
            Traffics::kSlot,
        Traffics::kSlot);
  }
  /// True if the place of `put` is free; spoils what the link has released.
  [[nodiscard]] bool free(Link& link, int channel, std::uint64_t put) {
    for (std::uint64_t& seen = seen_[channel]; seen + before_ < link.released(channel); ++seen) {
      std::ranges::fill(at(channel, seen), std::byte{0xee});
    }
    return put < seen_[channel] + Traffics::kSlots;
  }

 private:
  const std::uint64_t before_;
  std::vector<std::byte> own_;
  std::vector<std::byte, Allocator<std::byte>> of_library_;
  std::span<std::byte> memory_;
  std::uint64_t seen_[Traffics::kChannels] = {};
};

/// Called again and again with the puts that this rank has made on the first channel.
using Midway = std::function<void(std::uint64_t made)>;

/// `puts` on each channel from either end, all at once, sizes at random, every byte checked.
/// `before`: puts of earlier calls on this link.
inline void random_traffic(End& end, std::uint64_t seed, std::uint64_t puts,
                           const Midway& midway = {}, bool direct = false,
                           std::uint64_t before = 0) {
  constexpr int kChannels = Traffics::kChannels;
  constexpr std::uint64_t kSlots = Traffics::kSlots;
  constexpr std::size_t kSlot = Traffics::kSlot;
  const auto size_of_put = [&](Rank from, int channel, std::uint64_t i) -> std::size_t {
    std::mt19937_64 random(seed * 7919 + i * 64 + static_cast<std::uint64_t>(channel * 2 + from));
    const auto kind = random() % 4;
    return kind == 0 ? random() % (kSlot + 1) : kind == 1 ? random() % 20'000 : random() % 300;
  };
  const auto seed_of = [&](Rank from, int channel, std::uint64_t i) {
    return seed + i * 64 + static_cast<std::uint64_t>(channel * 2 + from);
  };
  Sources sources(direct, before);
  std::uint64_t sent[kChannels] = {};
  std::uint64_t received[kChannels] = {};
  const auto send = [&](int c) {
    if (sent[c] >= puts || sent[c] + before >= end.link.arrivals(kChannels + c) + kSlots) return;
    if (!sources.free(end.link, c, sent[c])) return;
    const auto bytes = pattern(size_of_put(end.rank, c, sent[c]), seed_of(end.rank, c, sent[c]));
    const auto src = sources.at(c, sent[c]).first(bytes.size());
    std::ranges::copy(bytes, src.begin());
    // Tags repeat, so that some puts need not carry theirs.
    const auto tag = static_cast<std::uint32_t>(sent[c] / 3);
    const std::size_t offset = (static_cast<std::size_t>(c) * kSlots + sent[c] % kSlots) * kSlot;
    if (end.link.try_put(src, offset, c, tag)) ++sent[c];
  };
  const auto receive = [&](int c) {
    const std::uint64_t i = received[c];
    if (i + before >= end.link.arrivals(c)) return;
    const Rank peer = 1 - end.rank;
    const std::size_t offset = (static_cast<std::size_t>(c) * kSlots + i % kSlots) * kSlot;
    EXPECT_EQ(end.link.tag(c, before + i), i / 3);
    EXPECT_TRUE(end.matches(offset, pattern(size_of_put(peer, c, i), seed_of(peer, c, i))))
        << "put " << i << " of channel " << c;
    end.signal(kChannels + c, 0);
    ++received[c];
  };
  end.until(
      [&] {
        bool done = true;
        if (midway) midway(sent[0]);
        for (int c = 0; c < kChannels; ++c) {
          send(c);
          receive(c);
          done = done && sent[c] == puts && received[c] == puts;
        }
        end.advance();
        return done && end.link.progress();
      },
      "random traffic");
  for (int c = 0; c < kChannels; ++c) EXPECT_EQ(end.link.released(c), before + puts);
  end.meet();
}

}  // namespace chorus::testing
