#include "base/secret.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "chorus/error.hpp"

namespace chorus {
namespace {

std::vector<std::byte> counting_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

Secret counting_secret() { return Secret::parse("000102030405060708090a0b0c0d0e0f"); }

std::string hex(const Proof& proof) { return Secret{proof}.text(); }

// The published vectors of SipHash-2-4-128: key 00 01 … 0f, message 00 01 … (n−1)
// (github.com/veorq/SipHash, vectors.h); OpenSSL's SipHash agrees.
TEST(Secret, ProofsAreSipHash24WithA128BitResult) {
  const struct {
    std::size_t size;
    std::string_view expected;
  } vectors[] = {
      {0, "a3817f04ba25a8e66df67214c7550293"},  {1, "da87c1d86b99af44347659119b22fc45"},
      {7, "a1f1ebbed8dbc153c0b84aa61ff08239"},  {8, "3b62a9ba6258f5610f83e264f31497b4"},
      {9, "264499060ad9baabc47f8b02bb6d71ed"},  {15, "5493e99933b0a8117e08ec0f97cfc3d9"},
      {16, "6ee2a4ca67b054bbfd3315bf85230577"}, {31, "2939b0183223fafc1723de4f52c43d35"},
      {32, "7c3956ca5eeafc3e363e9d556546eb68"}, {63, "5150d1772f50834a503e069a973fbd7c"},
  };
  for (const auto& vector : vectors) {
    EXPECT_EQ(hex(prove(counting_secret(), counting_bytes(vector.size))), vector.expected)
        << vector.size << " bytes";
  }
}

TEST(Secret, EveryBitOfSecretAndMessageMatters) {
  const auto message = counting_bytes(21);
  const Proof proof = prove(counting_secret(), message);
  for (std::size_t bit = 0; bit < 8 * message.size(); ++bit) {
    auto other = message;
    other[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    EXPECT_FALSE(same(prove(counting_secret(), other), proof)) << "message bit " << bit;
  }
  for (std::size_t bit = 0; bit < 128; ++bit) {
    Secret other = counting_secret();
    other.bytes[bit / 8] = static_cast<std::uint8_t>(other.bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(same(prove(other, message), proof)) << "secret bit " << bit;
  }
}

TEST(Secret, ComparisonSeesADifferenceInAnyByte) {
  const Proof proof = prove(counting_secret(), {});
  EXPECT_TRUE(same(proof, proof));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    Proof other = proof;
    other[i] ^= 0x80;
    EXPECT_FALSE(same(proof, other)) << "byte " << i;
  }
}

TEST(Secret, SurvivesItsText) {
  const Secret secret = Secret::random();
  EXPECT_EQ(secret.text().size(), 32u);
  EXPECT_EQ(Secret::parse(secret.text()), secret);
  EXPECT_EQ(Secret::parse("000102030405060708090A0B0C0D0E0F"), counting_secret());
}

TEST(Secret, RefusesAnythingButHexDigitsWithoutRepeatingThem) {
  for (const std::string bad :
       {"", "00", "000102030405060708090a0b0c0d0e0", "not-hex", "000102030405060708090a0b0c0d0e0f0",
        "000102030405060708090a0b0c0d0e0g", "0x0102030405060708090a0b0c0d0e0f"}) {
    try {
      static_cast<void>(Secret::parse(bad));
      FAIL() << "accepted '" << bad << "'";
    } catch (const InputError& error) {
      if (bad.size() < 5) continue;
      EXPECT_EQ(std::string(error.what()).find(bad), std::string::npos);
    }
  }
}

TEST(Secret, RandomSecretsDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(Secret::random().text());
  EXPECT_EQ(seen.size(), 1000u);
}

TEST(Secret, DerivedSecretsDependOnSecretAndPurposeAlone) {
  const Secret secret = counting_secret();
  EXPECT_EQ(secret.derive("comm 3"), secret.derive("comm 3"));
  EXPECT_NE(secret.derive("comm 3"), secret.derive("comm 4"));
  EXPECT_NE(secret.derive("comm 3"), Secret::random().derive("comm 3"));
  EXPECT_NE(secret.derive(""), secret);
}

}  // namespace
}  // namespace chorus
