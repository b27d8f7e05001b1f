// A pace that was measured too low is found out by those that send; one that is right stays.
#include <gtest/gtest.h>

#include <algorithm>

#include "transports/tcp/pace.hpp"

namespace chorus {
namespace {

constexpr std::int64_t kMs = 1'000'000;

/// A trunk that takes so much, with a queue before it.
struct Trunk {
  double bytes_per_s;
  double acknowledged = 0;
  double queued = 0;
  double most_queued = 0;

  void run(double sent_per_s, std::int64_t ns) {
    const double s = 1e-9 * static_cast<double>(ns);
    queued += sent_per_s * s;
    const double gone = std::min(queued, bytes_per_s * s);
    queued -= gone;
    acknowledged += gone;
    most_queued = std::max(most_queued, queued);
  }
};

/// Sends as fast as it may for so long.
void send(Pace& pace, Trunk& trunk, std::int64_t& now_ns, double seconds) {
  const std::int64_t end = now_ns + static_cast<std::int64_t>(seconds * 1e9);
  for (; now_ns < end; now_ns += kMs) {
    pace.look(now_ns, [&] { return static_cast<std::uint64_t>(trunk.acknowledged); });
    trunk.run(pace.rate(), kMs);
  }
}

TEST(Pace, OneThatIsTooLowBecomesThatOfTheTrunk) {
  for (const double too_low : {0.9, 0.5, 0.1}) {
    Trunk trunk{24e6};
    Pace pace(too_low * trunk.bytes_per_s);
    std::int64_t now = kMs;
    send(pace, trunk, now, 30);
    EXPECT_GT(pace.bytes_per_s(), 0.9 * trunk.bytes_per_s) << too_low;
    EXPECT_LT(pace.bytes_per_s(), 1.01 * trunk.bytes_per_s) << too_low;
  }
}

TEST(Pace, OneThatIsRightStaysAndItsTrialsCostLittle) {
  Trunk trunk{24e6};
  Pace pace(trunk.bytes_per_s);
  std::int64_t now = kMs;
  int faster = 0, all = 0, queueing = 0;
  for (; now < 200'000 * kMs; now += kMs, ++all) {
    pace.look(now, [&] { return static_cast<std::uint64_t>(trunk.acknowledged); });
    faster += pace.rate() > trunk.bytes_per_s ? 1 : 0;
    trunk.run(pace.rate(), kMs);
    trunk.queued = std::min(trunk.queued, 1e6);  // what it does not hold is lost
    queueing += trunk.queued > 1e5 ? 1 : 0;
  }
  EXPECT_EQ(pace.bytes_per_s(), trunk.bytes_per_s);
  EXPECT_GT(faster, 0);
  EXPECT_LT(faster * 100, all);
  EXPECT_LT(queueing * 50, all) << "what a trial has queued is given time to drain";
}

TEST(Pace, WhoHasLittleToSendLearnsNothing) {
  Trunk trunk{24e6};
  Pace pace(6e6);
  std::int64_t now = kMs;
  // Busy for 100 ms at a time: a trial begins and is not brought to its end.
  for (int burst = 0; burst < 100; ++burst) {
    send(pace, trunk, now, 0.1);
    pace.rest(now);
    now += 50 * kMs;
  }
  EXPECT_EQ(pace.bytes_per_s(), 6e6);
  EXPECT_EQ(pace.rate(), 6e6);
}

TEST(Pace, WithoutALimitNothingIsTried) {
  Pace pace(0);
  EXPECT_FALSE(pace.limits());
  EXPECT_FALSE(pace.look(kMs, [] { return std::uint64_t{1}; }));
  EXPECT_EQ(pace.rate(), 0);
}

}  // namespace
}  // namespace chorus
