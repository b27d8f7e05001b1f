#include "base/files/kernel_text.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace chorus {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(KernelText, ListsAreReadAsTheNumbersTheyMean) {
  EXPECT_THAT(listed("0-3,8"), ElementsAre(0, 1, 2, 3, 8));
  EXPECT_THAT(listed("5\n"), ElementsAre(5));
  EXPECT_THAT(listed(""), IsEmpty());
  EXPECT_THAT(listed("x,2,-1,7-5,9-y,99999999"), ElementsAre(2));
  EXPECT_EQ(listed("0-1048575").size(), 1048576u);
}

TEST(KernelText, AValueStandsBehindItsNameWithoutWhatSurroundsIt) {
  const std::string text =
      "processor : 0\nmodel name\t: Some CPU @ 2 GHz\nPRETTY=\"A System\"\nempty:\n";
  EXPECT_EQ(value_in(text, "model name"), "Some CPU @ 2 GHz");
  EXPECT_EQ(value_in(text, "PRETTY"), "A System");
  EXPECT_EQ(value_in(text, "empty"), "");
  EXPECT_EQ(value_in(text, "absent"), "");
  EXPECT_EQ(value_in("cubic\n", ""), "cubic");
}

TEST(KernelText, AFileThatIsNotThereIsEmpty) {
  EXPECT_EQ(kernel_text("/proc/no/such/file"), "");
  EXPECT_NE(kernel_text("/proc/self/status"), "");
}

}  // namespace
}  // namespace chorus
