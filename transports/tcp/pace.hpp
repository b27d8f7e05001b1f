// How fast a link sends into a network whose narrowest place was measured.
#pragma once

#include <cstdint>

namespace chorus {

/// A pace that was measured too low never shows it, since nothing is sent faster. So a link that is
/// busy now and then sends faster for a moment: if what the peer acknowledges follows, that is the
/// pace from then on; if not, a queue has grown by a moment's surplus, which is given as long to
/// drain, and the next trial is to wait twice as long. Else never below what was measured.
class Pace {
 public:
  /// 0: without limit.
  explicit Pace(double bytes_per_s = 0) : pace_(bytes_per_s) {}

  [[nodiscard]] bool limits() const { return pace_ > 0; }
  /// What the network is believed to take.
  [[nodiscard]] double bytes_per_s() const { return pace_; }
  /// What to send at just now.
  [[nodiscard]] double rate() const;

  /// The link has had enough to send at rate() since the last call, or since rest().
  /// `acknowledged()` are the bytes that the peer's kernel has acknowledged so far. True: rate() is
  /// another one.
  template <typename Acknowledged>
  bool look(std::int64_t now_ns, Acknowledged acknowledged) {
    if (!limits() || now_ns < until_ns_) return false;
    return next(now_ns, phase_ == Phase::steady ? 0 : acknowledged());
  }
  /// The link has little to send: what is acknowledged shows nothing. The next trial comes when it
  /// has been busy again for a while.
  void rest(std::int64_t now_ns);

 private:
  enum class Phase : std::uint8_t {
    steady,
    fills,     ///< sends faster, and what is acknowledged may still be from before
    measures,  ///< it is not
    drains     ///< what was sent too fast
  };
  bool next(std::int64_t now_ns, std::uint64_t acknowledged);

  static constexpr double kFaster = 1.25;

  double pace_;
  Phase phase_ = Phase::steady;
  std::int64_t until_ns_ = 0;  ///< the end of the phase
  std::int64_t wait_ns_ = kFirstWaitNs;
  std::int64_t began_ns_ = 0;  ///< measuring
  std::uint64_t began_bytes_ = 0;

  static constexpr std::int64_t kFirstWaitNs = 500'000'000;
};

}  // namespace chorus
