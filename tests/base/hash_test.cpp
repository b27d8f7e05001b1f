#include "base/hash.hpp"

#include <gtest/gtest.h>

namespace chorus {
namespace {

// The vectors that the function's authors publish (draft-eastlake-fnv, test_fnv.c).
TEST(Hash, IsFnv1a) {
  const std::pair<std::string_view, std::uint64_t> vectors[] = {
      {"", 0xcbf29ce484222325},
      {"a", 0xaf63dc4c8601ec8c},
      {"b", 0xaf63df4c8601f1a5},
      {"fo", 0x08985907b541d342},
      {"foo", 0xdcb27518fed9d577},
      {"foob", 0xdd120e790c2512af},
      {"fooba", 0xcac165afa2fef40a},
      {"foobar", 0x85944171f73967e8},
      {"chongo was here!\n", 0x46810940eff5f915},
  };
  for (const auto& [text, value] : vectors) {
    EXPECT_EQ(Fnv1a().bytes(text).value(), value) << text;
  }
}

TEST(Hash, TakesBytesAboveAsciiAsTheyAre) {
  EXPECT_EQ(Fnv1a().bytes("\xff").value(), Fnv1a().byte(0xff).value());
}

TEST(Hash, GoesOnFromAValue) {
  EXPECT_EQ(Fnv1a(Fnv1a().bytes("foo").value()).bytes("bar").value(), 0x85944171f73967e8U);
}

// Computed apart from this code: what ranks, files and kernels compare must stay what it is.
TEST(Hash, OfWordsStaysWhatItIs) {
  static_assert(Fnv1a().word(0x123456789abcdef0).word(~std::uint64_t{0}).value() ==
                0xf1a7019a21cb7830);
  EXPECT_EQ(Fnv1a().word(1).word(2).word(3).value(), 0xd0aa6218672cf5abU);
  EXPECT_EQ(Fnv1a().stirred_word(1).stirred_word(0x123456789abcdef0).value(), 0x5ceda9f1f2a6f930U);
}

}  // namespace
}  // namespace chorus
