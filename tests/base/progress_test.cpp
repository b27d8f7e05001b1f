#include "base/text/progress.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace chorus {
namespace {

TEST(Progress, OfShortWorkLeavesNoLineInALog) {
  std::FILE* const log = std::tmpfile();
  {
    Progress progress(log, "test");
    for (int done = 0; done <= 420; ++done) progress.show(done, 420, "all_gather");
  }
  EXPECT_EQ(std::ftell(log), 0);
  std::fclose(log);
}

}  // namespace
}  // namespace chorus
