// Whatever happens to a job at whatever moment: who it was is named, nobody hangs, the others go
// on.
#include <gtest/gtest.h>

#include "trial.hpp"

namespace chorus::campaign {
namespace {

TEST(Campaign, EndsAsPromisedWhateverHappensWhenever) {
  constexpr int kTrials = 200, kAtOnce = 8;
  int ended = 0;
  const auto trial_of = [](int number) { return draw(1, number); };
  run_all(trial_of, 0, kTrials, kAtOnce, [&](int number, const Trial& trial, const Result& result) {
    ++ended;
    EXPECT_FALSE(result.broken) << "trial " << number << ": " << trial.text() << ": "
                                << result.broken.value_or("");
  });
  EXPECT_EQ(ended, kTrials);
}

}  // namespace
}  // namespace chorus::campaign
