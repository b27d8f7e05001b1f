// Rails that fail and work again, over adapters that do so on command.
#include <gmock/gmock.h>

#include <utility>

#include "rdma/fake_verbs.hpp"
#include "rdma/traffic.hpp"
#include "transports/rdma/link.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const Way kWay{.transport = "rdma", .interface_name = "", .processes = false, .name = "rdma"};

class RdmaReturnTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::reset(2); }
  void TearDown() override { EXPECT_THAT(fake::violations(), IsEmpty()); }
};

RdmaLink& rdma(End& end) { return dynamic_cast<RdmaLink&>(end.link); }

void port_down(int adapter) {
  fake::adapter(adapter).port_active = false;
  fake::raise(adapter, IBV_EVENT_PORT_ERR);
}
void port_up(int adapter) {
  fake::adapter(adapter).port_active = true;
  fake::raise(adapter, IBV_EVENT_PORT_ACTIVE);
}

void await_rails(End& end, std::size_t count) {
  end.until(
      [&] {
        end.advance();
        return rdma(end).live_rails() == count;
      },
      "waiting for rails");
  end.meet();
}

/// Traffic, then `fail`; traffic over what is left; `mend`; and traffic over all rails again. What
/// is said meanwhile.
std::string said_while(const std::function<void()>& fail, std::size_t left,
                       const std::function<void()>& mend, bool direct = false) {
  ::testing::internal::CaptureStderr();
  run_both(kWay, Traffics::config(), [&](End& end) {
    random_traffic(end, 1, 20, {}, direct);
    if (end.rank == 0) fail();
    end.meet();
    random_traffic(end, 2, 20, {}, direct, 20);
    await_rails(end, left);
    if (end.rank == 0) mend();
    end.meet();
    await_rails(end, 2);
    const std::uint64_t before[2] = {fake::delivered(0), fake::delivered(1)};
    end.meet();
    random_traffic(end, 3, 40, {}, direct, 40);
    for (int i = 0; i < 2; ++i) EXPECT_GT(fake::delivered(i), before[i] + 5) << "adapter " << i;
    end.meet();
  });
  return ::testing::internal::GetCapturedStderr();
}

TEST_F(RdmaReturnTest, APortThatComesBackTakesItsTrafficAgainWithOneLine) {
  for (const bool direct : {false, true}) {
    const std::string said = said_while([] { port_down(1); }, 1, [] { port_up(1); }, direct);
    EXPECT_THAT(said, HasSubstr("fake1 port 1 to rank 1 works again: going on over 2 of 2 rails"));
    const auto first = said.find("works again");
    EXPECT_EQ(said.find("works again", first + 1), std::string::npos) << said;
    EXPECT_THAT(fake::violations(), IsEmpty());
    fake::reset(2);
  }
}

TEST_F(RdmaReturnTest, FromTheControlConnectionTrafficGoesBackToThePorts) {
  const std::string said = said_while(
      [] {
        port_down(0);
        port_down(1);
      },
      0,
      [] {
        port_up(1);
        port_up(0);
      });
  EXPECT_THAT(said, HasSubstr("going on over tcp"));
  EXPECT_THAT(said, HasSubstr("fake0 port 1 to rank 1 works again"));
  EXPECT_THAT(said, HasSubstr("fake1 port 1 to rank 1 works again"));
}

TEST_F(RdmaReturnTest, AGidThatIsBackBringsItsPortBack) {
  const std::string said = said_while(
      [] {
        fake::adapter(0).only_roce1 = true;
        fake::raise(0, IBV_EVENT_GID_CHANGE);
      },
      1,
      [] {
        fake::adapter(0).only_roce1 = false;
        fake::raise(0, IBV_EVENT_GID_CHANGE);
      });
  EXPECT_THAT(said, HasSubstr("its GID 3 changed"));
  EXPECT_THAT(said, HasSubstr("fake0 port 1 to rank 1 works again"));
}

// The port says that it is up, and yet nothing passes: no put is risked on it.
TEST_F(RdmaReturnTest, APathIsTriedBeforeItIsUsed) {
  const std::string said = said_while(
      [] {
        fake::adapter(1).breaks_after = 1;
        fake::raise(1, IBV_EVENT_PORT_ACTIVE);
      },
      1,
      [] {
        fake::adapter(1).breaks_after = -1;
        fake::raise(1, IBV_EVENT_PORT_ACTIVE);
      });
  EXPECT_THAT(said, HasSubstr("transport retry counter exceeded"));
  // By each end that had something under way there.
  for (const char* const end : {"[rank 0] rdma: fake1", "[rank 1] rdma: fake1"}) {
    int failures = 0;
    for (auto at = said.find(end); at != std::string::npos; at = said.find(end, at + 1)) {
      const std::string line = said.substr(at, said.find('\n', at) - at);
      if (line.find("going on over fake0") != std::string::npos) ++failures;
    }
    EXPECT_LE(failures, 1) << "it failed again, though it was tried in vain:\n" << said;
  }
}

TEST_F(RdmaReturnTest, AnAdapterThatWasRemovedStaysOut) {
  ::testing::internal::CaptureStderr();
  run_both(kWay, Traffics::config(), [&](End& end) {
    random_traffic(end, 1, 10);
    if (end.rank == 0) fake::raise(1, IBV_EVENT_DEVICE_FATAL);
    end.meet();
    await_rails(end, 1);
    if (end.rank == 0) fake::raise(1, IBV_EVENT_PORT_ACTIVE);
    end.meet();
    random_traffic(end, 2, 20, {}, false, 10);
    EXPECT_EQ(rdma(end).live_rails(), 1u);
    end.meet();
  });
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("works again")));
}

// At any moment, with what was under way lost, or delivered and never acknowledged.
TEST_F(RdmaReturnTest, WhileTrafficGoesOnRailsMayFailAndComeBackAndNothingIsLostOrDoubled) {
  std::mt19937_64 random(11);
  ::testing::internal::CaptureStderr();
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    fake::reset(2);
    const std::uint64_t fails[2] = {random() % 60, random() % 60};
    const std::uint64_t heals[2] = {fails[0] + random() % 30, fails[1] + random() % 30};
    const int unheard = static_cast<int>(random() % 8);
    run_both(kWay, Traffics::config(), [&](End& end) {
      int step[2] = {};
      const auto midway = [&](std::uint64_t made) {
        for (int i = 0; i < 2; ++i) {
          if (step[i] == 0 && made >= fails[i]) {
            fake::adapter(i).unheard = unheard;
            fake::adapter(i).breaks_after = 1;
            step[i] = 1;
          } else if (step[i] == 1 && made >= heals[i]) {
            fake::adapter(i).breaks_after = -1;
            fake::raise(i, IBV_EVENT_PORT_ACTIVE);
            step[i] = 2;
          }
        }
      };
      random_traffic(end, seed, 100, end.rank == 0 ? Midway(midway) : Midway(), seed % 2 == 0);
    });
    EXPECT_THAT(fake::violations(), IsEmpty()) << "seed " << seed;
    if (HasFailure()) break;
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("works again"));
}

}  // namespace
}  // namespace chorus::testing
