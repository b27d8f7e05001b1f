#include "runtime/control/coordinator/lateness.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "runtime/control/net.hpp"

namespace chorus {
namespace {

constexpr std::int64_t kSecond = 1'000'000'000;

TEST(Lateness, IsMentionedAfterTheIntervalAndEachTimeItHasDoubled) {
  Lateness lateness(30'000);
  std::string when;
  for (std::int64_t s = 0; s <= 600; ++s) {
    if (const auto late = lateness.due(s * kSecond)) when += std::to_string(s) + " ";
  }
  EXPECT_EQ(when, "30 60 120 240 480 ");
}

TEST(Lateness, OfAnotherWaitBeginsAnew) {
  Lateness lateness(1'000);
  EXPECT_TRUE(lateness.due(5 * kSecond));
  EXPECT_FALSE(lateness.due(6 * kSecond));
  EXPECT_FALSE(lateness.due(kSecond / 2));
  EXPECT_TRUE(lateness.due(kSecond));
  EXPECT_EQ(*Lateness(1'000).due(3 * kSecond / 2), 1.5);
}

TEST(Lateness, IsNeverMentionedWhereNobodyWantsIt) {
  Lateness never(0);
  EXPECT_FALSE(never.due(1'000'000 * kSecond));
  EXPECT_FALSE(never.may_be_due(1'000'000 * kSecond));
}

TEST(StoppedProcess, IsSeenUntilItGoesOn) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    for (;;) ::pause();
  }
  const std::string own = net::process_identity();
  const std::string theirs = own.substr(0, own.rfind('/') + 1) + std::to_string(child);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  EXPECT_TRUE(net::is_stopped(theirs));
  EXPECT_FALSE(net::is_stopped(own));
  EXPECT_FALSE(net::is_stopped("another machine/" + std::to_string(child)));
  ::kill(child, SIGCONT);
  for (int i = 0; i < 1000 && net::is_stopped(theirs); ++i) ::usleep(1000);
  EXPECT_FALSE(net::is_stopped(theirs));
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  EXPECT_FALSE(net::is_stopped(theirs));
}

}  // namespace
}  // namespace chorus
