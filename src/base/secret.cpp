#include "base/secret.hpp"

#include <fmt/format.h>
#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

#include "chorus/error.hpp"

namespace chorus {
namespace {

std::uint64_t load_little_endian(const std::uint8_t* bytes) {
  std::uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

void store_little_endian(std::uint64_t value, std::uint8_t* bytes) {
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(value >> (8 * i));
}

/// The four words of SipHash's state (paper, section 2).
struct SipState {
  std::uint64_t v0, v1, v2, v3;

  explicit SipState(const Secret& secret) {
    const std::uint64_t k0 = load_little_endian(secret.bytes.data());
    const std::uint64_t k1 = load_little_endian(secret.bytes.data() + 8);
    v0 = k0 ^ 0x736f6d6570736575;
    v1 = k1 ^ 0x646f72616e646f6d ^ 0xee;  // 0xee: the 128-bit variant
    v2 = k0 ^ 0x6c7967656e657261;
    v3 = k1 ^ 0x7465646279746573;
  }

  void rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  }

  void absorb(std::uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  }

  /// Half of the output.
  std::uint64_t squeeze(std::uint64_t& word, std::uint64_t mark) {
    word ^= mark;
    rounds(4);
    return v0 ^ v1 ^ v2 ^ v3;
  }
};

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Secret Secret::random() {
  Secret secret;
  std::size_t have = 0;
  while (have < secret.bytes.size()) {
    const ssize_t got = ::getrandom(secret.bytes.data() + have, secret.bytes.size() - have, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      throw BootstrapError(
          fmt::format("cannot get random bytes for a secret: getrandom: {}", std::strerror(errno)));
    }
    have += static_cast<std::size_t>(got);
  }
  return secret;
}

Secret Secret::parse(std::string_view hex) {
  Secret secret;
  bool good = hex.size() == 2 * secret.bytes.size();
  for (std::size_t i = 0; good && i < secret.bytes.size(); ++i) {
    const int high = hex_digit(hex[2 * i]);
    const int low = hex_digit(hex[2 * i + 1]);
    good = high >= 0 && low >= 0;
    secret.bytes[i] = static_cast<std::uint8_t>(high * 16 + low);
  }
  // The text stays out of the message: it may be a real secret with one typing error.
  if (!good) {
    throw InputError(fmt::format("a secret is 32 hex digits; this one has {} characters{}",
                                 hex.size(), hex.size() == 32 ? ", not all of them hex" : ""));
  }
  return secret;
}

std::string Secret::text() const {
  std::string hex;
  for (const std::uint8_t byte : bytes) hex += fmt::format("{:02x}", byte);
  return hex;
}

Secret Secret::derive(std::string_view purpose) const {
  // A pseudorandom function of the purpose; nothing else proves messages of this form ("derive:"
  // starts no proof's message), so a proof seen on the wire never is a derived secret.
  const std::string message = fmt::format("derive:{}", purpose);
  return Secret{prove(*this, std::as_bytes(std::span(message)))};
}

Proof prove(const Secret& secret, std::span<const std::byte> message) {
  SipState state(secret);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(message.data());
  const std::size_t whole = message.size() / 8 * 8;
  for (std::size_t at = 0; at < whole; at += 8) state.absorb(load_little_endian(bytes + at));

  std::uint64_t last = static_cast<std::uint64_t>(message.size()) << 56;
  for (std::size_t i = 0; i < message.size() - whole; ++i) {
    last |= static_cast<std::uint64_t>(bytes[whole + i]) << (8 * i);
  }
  state.absorb(last);

  Proof proof;
  store_little_endian(state.squeeze(state.v2, 0xee), proof.data());
  store_little_endian(state.squeeze(state.v1, 0xdd), proof.data() + 8);
  return proof;
}

bool same(const Proof& a, const Proof& b) {
  std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<std::uint8_t>(difference | (a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace chorus
