#include "base/text/slice.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace chorus {
namespace {

/// Where there are slices to ask for, long enough to be shortened.
class SliceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (before_ == 0) GTEST_SKIP() << "this kernel (or policy) has no slices to ask for";
    if (before_ <= 200) GTEST_SKIP() << "slices are short already: " << before_ << " us";
  }

  const int before_ = own_slice_us();
};

TEST_F(SliceTest, IsShortenedForTheThreadThatAsksAndOnlyThat) {
  int untouched = 0, asked = 0, asked_again = 0;
  std::thread([&] {
    request_slice(0);
    untouched = own_slice_us();
    request_slice(200);
    asked = own_slice_us();
    request_slice(100);  // once per thread, so that it costs nothing on the way
    asked_again = own_slice_us();
  }).join();
  EXPECT_EQ(untouched, before_);
  EXPECT_EQ(asked, 200);
  EXPECT_EQ(asked_again, 200);
  EXPECT_EQ(own_slice_us(), before_);
}

TEST_F(SliceTest, IsNeverLengthened) {
  int after = 0;
  std::thread([&] {
    request_slice(before_ + 10'000);
    after = own_slice_us();
  }).join();
  EXPECT_EQ(after, before_);
}

}  // namespace
}  // namespace chorus
