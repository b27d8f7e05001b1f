// Whatever happens to a job at whatever moment: who it was is named, nobody hangs, the others go
// on.
#include <gtest/gtest.h>

#include "trial.hpp"

namespace chorus::campaign {
namespace {

TEST(Campaign, EndsAsPromisedWhateverHappensWhenever) {
  constexpr int kTrials = 40;
  for (int i = 0; i < kTrials; ++i) {
    const Trial trial = draw(1, i);
    const Result result = run(trial);
    EXPECT_FALSE(result.broken) << "trial " << i << ": " << trial.text() << ": "
                                << result.broken.value_or("");
  }
}

}  // namespace
}  // namespace chorus::campaign
