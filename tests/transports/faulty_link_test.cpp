// The faulty link does what tests of its users rely on.
#include "faulty_link.hpp"

#include "ends.hpp"

namespace chorus::testing {
namespace {

const Way kWay{"shm", "", false, "shm_threads"};
const LinkConfig kConfig{.region_bytes = 4096};

/// Rank 0 sends ten puts of 100 bytes, number i tagged i, through a faulty link; rank 1 judges.
void send_ten(const Faults& faults, std::uint64_t expected_arrivals,
              const std::function<void(End&, Clock::duration)>& judge) {
  const auto bytes = pattern(100, 3);
  const Role role = [&](End& end) {
    const auto begin = Clock::now();
    if (end.rank == 1) {
      end.await(0, expected_arrivals);
      judge(end, Clock::now() - begin);
    } else {
      for (std::uint32_t i = 0; i < 10; ++i) end.put(bytes, i * 100, 0, i);
      end.flush();
      EXPECT_EQ(end.link.released(0), 10u);
    }
    end.meet();
  };
  run_both(kWay, kConfig, role, [&](Rank rank, std::unique_ptr<Link> link) {
    if (rank == 1) return link;
    return std::unique_ptr<Link>(std::make_unique<FaultyLink>(std::move(link), 1, faults));
  });
}

TEST(FaultyLink, WithoutFaultsIsInvisible) {
  send_ten({}, 10, [](End& end, Clock::duration) {
    for (std::uint32_t i = 0; i < 10; ++i) {
      EXPECT_EQ(end.link.tag(0, i), i);
      EXPECT_TRUE(end.matches(i * 100, pattern(100, 3)));
    }
  });
}

TEST(FaultyLink, DropsOnePut) {
  send_ten({.drop = 4}, 9, [](End& end, Clock::duration) {
    EXPECT_EQ(end.link.tag(0, 3), 3u);
    EXPECT_EQ(end.link.tag(0, 4), 5u);
    EXPECT_EQ(end.link.arrivals(0), 9u);
  });
}

TEST(FaultyLink, FlipsOneBitOfOnePut) {
  send_ten({.corrupt = 6}, 10, [](End& end, Clock::duration) {
    for (std::uint32_t i = 0; i < 10; ++i) {
      EXPECT_EQ(end.matches(i * 100, pattern(100, 3)), i != 6) << i;
      EXPECT_EQ(end.link.tag(0, i), i);
    }
  });
}

TEST(FaultyLink, ChangesOneTag) {
  send_ten({.corrupt_tag = 2}, 10, [](End& end, Clock::duration) {
    for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(end.link.tag(0, i) == i, i != 2) << i;
    EXPECT_TRUE(end.matches(200, pattern(100, 3)));
  });
}

TEST(FaultyLink, HoldsBackOnePutAndThoseBehindIt) {
  send_ten({.delay = 5, .delay_by = 100ms}, 10, [](End& end, Clock::duration took) {
    EXPECT_GE(took, 50ms);
    for (std::uint32_t i = 0; i < 10; ++i) EXPECT_EQ(end.link.tag(0, i), i);
  });
}

TEST(FaultyLink, ClosesForGood) {
  FaultyLink faulty(nullptr, 1, {.close = 0});
  EXPECT_THROW(static_cast<void>(faulty.try_put({}, 0, 0, 0)), LinkError);
  EXPECT_THROW(static_cast<void>(faulty.progress()), LinkError);
  EXPECT_THROW(static_cast<void>(faulty.try_put({}, 0, 0, 0)), LinkError);
}

}  // namespace
}  // namespace chorus::testing
