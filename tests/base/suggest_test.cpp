#include "base/text/suggest.hpp"

#include <gtest/gtest.h>

#include <array>

#include "base/counted.hpp"

namespace chorus {
namespace {

constexpr std::array<std::string_view, 4> kWords = {"dgx-a100", "dgx-h100", "ring", "torus"};

TEST(Suggest, FindsTheNearestWordInAnyCase) {
  EXPECT_EQ(nearest_word("DGX-A100", kWords), "dgx-a100");
  EXPECT_EQ(nearest_word("dgx-a10", kWords), "dgx-a100");
  EXPECT_EQ(nearest_word("Rnig", kWords), "ring");
  EXPECT_EQ(nearest_word("hypercube", kWords), std::nullopt);
  EXPECT_EQ(nearest_word("rin", kWords, 0), std::nullopt);
  EXPECT_EQ(nearest_word("", {}), std::nullopt);
  EXPECT_EQ(hint("Torus", kWords), "did you mean torus? ");
  EXPECT_EQ(hint("hypercube", kWords), "");
}

TEST(Counted, KnowsOneFromMany) {
  EXPECT_EQ(counted(0, "rank"), "0 ranks");
  EXPECT_EQ(counted(1, "rank"), "1 rank");
  EXPECT_EQ(counted(2, "rank"), "2 ranks");
  EXPECT_EQ(counted(1, "switch", "switches"), "1 switch");
  EXPECT_EQ(counted(3, "switch", "switches"), "3 switches");
}

}  // namespace
}  // namespace chorus
