// How a put gets into the peer's memory, tuned while puts are made.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transports/link/message_copies.hpp"

namespace chorus {

enum class PutWay : std::uint8_t {
  stage,   ///< copied into the peer's region
  stream,  ///< the same by stores that go past the caches
  kernel   ///< left where it is until the receiver has it read by the kernel
};

/// Where two cores have no cache in common, a store into what the other one has just read waits for
/// it, line by line; a store past the caches does not, but the reader then fetches from memory. So
/// it depends on how far apart the cores are, and processors of a virtual machine move. The putter
/// alone sees it: its own copies take longer one way and as long the other, whatever its source
/// costs. Now and then a few puts go another way than the best: soon after a change, seldom later.
class PutWays {
 public:
  /// Everything is staged.
  PutWays() = default;
  explicit PutWays(const MessageCopiesBySize& expected);

  /// Whether puts may be left to the kernel, of any size.
  [[nodiscard]] bool any_by_kernel() const { return any_by_kernel_; }
  /// For the next put of so many bytes. `in_a_row`: as Link::in_a_row().
  [[nodiscard]] PutWay next(std::size_t bytes, bool in_a_row);
  /// Copies `src` to `to` that way, and learns how long it took; done when it returns. Not for
  /// PutWay::kernel.
  void copy(std::byte* to, std::span<const std::byte> src, PutWay way);
  /// The putter's copy of so many bytes took so long.
  void took(PutWay way, std::size_t bytes, double seconds);

 private:
  /// Below, the clock costs more than there is to gain.
  static constexpr std::size_t kTimed = 4096;
  static constexpr std::uint32_t kOften = 8, kSeldom = 512;  ///< puts from trial to trial
  /// Puts of a trial, of which the least counts: the first finds the caches cold, and any may lose
  /// its core.
  static constexpr std::uint32_t kTrial = 4;
  /// Of the others one in so many is timed: the clock costs some hundredths of 16 KiB.
  static constexpr std::uint32_t kTimedOf = 4;

  struct Size {
    MessageCopies expected;
    std::array<bool, 2> by_kernel = {};        ///< alone, and in a row: it may pay
    std::array<double, kTrial> staged_s = {};  ///< what the last took
    std::array<double, kTrial> streamed_s = {};
    std::uint32_t staged = 0, streamed = 0;
    std::array<PutWay, 2> best = {PutWay::stage, PutWay::stage};
    std::uint32_t interval = kOften;
    std::uint32_t until_trial = kOften;
    std::uint32_t trial_left = 0;
    bool in_trial = false;  ///< the last of next()
    std::uint32_t copies = 0;
    bool streams_next = false;  ///< which of the two the trial is of
  };
  /// Null where nothing is known of puts of so many bytes.
  [[nodiscard]] Size* size_of(std::size_t bytes);
  void choose(Size& size) const;

  std::vector<Size> sizes_;  // [k]: more than 2^(k-1) bytes, at most 2^k
  bool overlap_ = true;
  bool any_by_kernel_ = false;
};

}  // namespace chorus
