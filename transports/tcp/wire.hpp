// What tcp peers say to each other, byte for byte. Little-endian, as every machine that Chorus runs
// on; described in docs/transports/tcp.md.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include "base/secret.hpp"
#include "chorus/schedule.hpp"
#include "transports/link/host_identity.hpp"

namespace chorus {

static_assert(std::endian::native == std::endian::little, "tcp frames are little-endian structs");

using Nonce = std::array<std::uint8_t, 16>;

inline constexpr int kMaxTcpSockets = 16;
/// Interfaces of a rank that are used beside each other.
inline constexpr int kMaxTcpRails = 8;
/// Of a link over all its paths: a bit each in TcpPaths.
inline constexpr int kMaxLinkSockets = 64;

/// A further address of a rank: of another interface than TcpAddress::ip.
struct TcpRail {
  std::array<std::uint8_t, 16> ip{};  ///< an IPv4 address in the first 4
  std::uint16_t port = 0;             ///< host byte order
  std::uint16_t version = 0;          ///< 4 or 6
  std::uint16_t prefix = 0;           ///< bits of the address that name its network
  std::uint16_t reserved = 0;
};

/// What a rank publishes.
struct TcpAddress {
  std::uint64_t magic = 0;
  HostIdentity host;
  Nonce nonce{};
  std::array<std::uint8_t, 16> ip{};  ///< an IPv4 address in the first 4
  std::uint64_t region_bytes = 0;
  std::int32_t rank = 0;
  std::uint32_t num_channels = 0;
  std::uint32_t max_outstanding = 0;
  std::uint16_t num_sockets = 0;
  std::uint16_t port = 0;     ///< host byte order
  std::uint16_t version = 0;  ///< 4 or 6
  std::uint16_t prefix = 0;   ///< bits of the address that name its network
  std::uint16_t num_rails = 0;
  std::uint16_t reserved = 0;
  std::array<TcpRail, kMaxTcpRails - 1> rails{};  ///< the first num_rails of them

  static constexpr std::uint64_t kMagic = 0x337063742d756863;  // "chu-tcp3"

  /// What is published: up to the last rail. A thousand ranks read each other's.
  [[nodiscard]] std::span<const std::byte> bytes() const {
    const std::size_t unused = rails.size() - std::min<std::size_t>(num_rails, rails.size());
    return std::as_bytes(std::span(this, 1)).first(sizeof *this - unused * sizeof(TcpRail));
  }
  /// Nothing if `bytes` cannot be an address of this version of Chorus.
  static std::optional<TcpAddress> parse(std::span<const std::byte> bytes);
};
static_assert(std::has_unique_object_representations_v<TcpAddress>, "padding would leak memory");

/// The first bytes of a connection, from the rank that connects.
struct TcpHello {
  std::uint64_t magic = kMagic;
  std::int32_t rank = 0;  ///< who connects
  std::int32_t peer = 0;  ///< to whom
  std::uint32_t socket = 0;
  std::uint32_t incarnation = 0;  ///< of the socket's path: 0, then one more for each new attempt
  Nonce nonce{};                  ///< the connecting end's
  Proof proof{};

  static constexpr std::uint64_t kMagic = 0x6f6c6c65682d7563;  // "cu-hello"
};
static_assert(sizeof(TcpHello) == 56);

/// The answer, from the rank that listens. Nothing else is sent before it has come.
struct TcpWelcome {
  std::uint64_t magic = kMagic;
  Proof proof{};

  static constexpr std::uint64_t kMagic = 0x656d6f636c65772d;  // "-welcome"
};
static_assert(sizeof(TcpWelcome) == 24);

/// Where a link may have several paths: the first bytes on its first socket behind the welcome,
/// from the rank that connects. Nothing else is sent on any of its sockets before.
struct TcpPaths {
  std::uint64_t magic = kMagic;
  std::uint64_t sockets = 0;  ///< those that stand, a bit each; the others are given up

  static constexpr std::uint64_t kMagic = 0x73687461702d7563;  // "cu-paths"
};
static_assert(sizeof(TcpPaths) == 16);

/// Proofs that either end knows the secret, bound to this listener and this connection.
[[nodiscard]] Proof hello_proof(const Secret& secret, const Nonce& listener, const TcpHello& hello);
[[nodiscard]] Proof welcome_proof(const Secret& secret, const Nonce& listener,
                                  const TcpHello& hello);

/// Precedes the bytes of one piece of a put. A put is one piece, or one piece per socket, or, on a
/// link of several paths, as many as are shared out among them.
struct TcpFrame {
  std::uint16_t magic = kPut;
  std::uint16_t channel = 0;
  std::uint32_t tag = 0;
  std::uint64_t offset = 0;    ///< of this piece in the region
  std::uint64_t length = 0;    ///< of this piece; its bytes follow
  std::uint32_t sequence = 0;  ///< of the put on its channel, from 0, modulo 2³²
  std::uint16_t pieces = 1;    ///< of the put
  std::uint16_t reserved = 0;
  std::uint32_t total = 0;  ///< the latest of PiggybackedCredits::tell for the channel
  std::uint32_t unused = 0;

  static constexpr std::uint16_t kPut = 0x7063;
  static constexpr std::uint16_t kGoodbye = 0x6663;  ///< the last frame of an end that leaves
  /// Means nothing; `length` bytes follow, at most kMostFiller.
  static constexpr std::uint16_t kFiller = 0x6c66;
  static constexpr std::uint64_t kMostFiller = 32 * 1024;
  /// On a link of several paths, of the connection whose socket is `tag` and whose incarnation is
  /// `sequence`: the sender has lost it and believes none of its acknowledgements any more. Where
  /// `channel` is 1 it has also read all that had come, `offset` whole frames, and reads no more.
  static constexpr std::uint16_t kLost = 0x736c;
  /// Of a put, on a link of several paths.
  static constexpr std::uint16_t kMostPieces = 128;
};
static_assert(sizeof(TcpFrame) == 40);

}  // namespace chorus
