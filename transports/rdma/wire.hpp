// What rdma peers publish and say to each other, byte for byte; docs/transports/rdma.md.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>

#include "transports/tcp/wire.hpp"

namespace chorus {

inline constexpr int kMaxRdmaPorts = 8;
inline constexpr int kMaxRails = 16;

/// What a rank publishes. Plain numbers only, so that builds without libibverbs read it too.
struct RdmaAddress {
  struct Port {
    std::array<char, 20> device{};  ///< zero-terminated
    std::uint16_t lid = 0;
    std::uint8_t number = 0;
    std::uint8_t mtu = 0;  ///< ibv_mtu
    std::array<std::uint8_t, 16> gid{};
    std::uint8_t ethernet = 0;
    std::uint8_t reserved[3] = {};
  };

  std::uint64_t magic = kMagic;
  TcpAddress control;  ///< where the pair's control connection is made; also who this is, its sizes
  std::uint32_t num_ports = 0;  ///< 0: `reason` says why
  std::uint32_t queue_pairs = 1;
  std::array<Port, kMaxRdmaPorts> ports{};
  std::array<char, 160> reason{};  ///< zero-terminated

  static constexpr std::uint64_t kMagic = 0x3361646d722d7563;  // "cu-rdma3"

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return std::as_bytes(std::span(this, 1));
  }
  void set_reason(std::string_view text);
  /// Nothing if `bytes` cannot be an address of this version of Chorus.
  static std::optional<RdmaAddress> parse(std::span<const std::byte> bytes);
};
static_assert(sizeof(RdmaAddress) <= 1024);
static_assert(std::has_unique_object_representations_v<RdmaAddress>, "padding would leak memory");

/// Frames of the control connection beside TcpFrame's own two. `channel` is the rail, `length` what
/// follows.
struct RdmaFrame {
  static constexpr std::uint16_t kConnect = 0x6372;  ///< RdmaConnect follows
  static constexpr std::uint16_t kReady = 0x7972;    ///< tag: bit mask of the rails that stand
  /// A rail is down; a table of what had come follows. Said by both ends. tag: 1 if this end
  /// noticed by itself, else 0.
  static constexpr std::uint16_t kResume = 0x7372;
  /// A rail that was down is tried again; a RdmaConnect::Rail follows. Said by both ends.
  static constexpr std::uint16_t kOffer = 0x666f;
  static constexpr std::uint16_t kJoined = 0x6e6a;   ///< what was offered is connected
  static constexpr std::uint16_t kVerdict = 0x6476;  ///< tag: 1 if what was offered works, else 0
  static constexpr std::uint16_t kCredit = 0x6b72;   ///< tag: arrivals of `channel`
  /// tag: PiggybackedCredits of `channel`, which slots have told that may have been lost.
  static constexpr std::uint16_t kTotal = 0x6c74;
};

/// What an end tells the other before the first put.
struct RdmaConnect {
  struct Rail {
    std::uint32_t queue_pair = 0;  ///< 0: this rail does not stand at this end
    std::uint32_t first_packet = 0;
    std::uint32_t key = 0;         ///< of the slots
    std::uint32_t region_key = 0;  ///< of the region
  };
  std::uint64_t slots = 0;         ///< address
  std::uint64_t region = 0;        ///< address
  std::uint64_t region_bytes = 0;  ///< that may be written
  std::uint64_t outside = 0;       ///< 1: only adapters reach the region; else 0
  std::array<Rail, kMaxRails> rails{};
};
static_assert(std::has_unique_object_representations_v<RdmaConnect>);

/// What a completion says besides its bytes: the 32 bits of immediate data.
struct Immediate {
  enum class Kind : std::uint32_t {
    slot,    ///< the put's slot was written: a small put whole, or the last piece of a large one
    bare,    ///< a put in one piece whose tag is that of the put before it on its channel
    piece,   ///< another piece of a put whose slot comes on another rail
    credit,  ///< sequence: how many puts of the channel have been taken
  };
  Kind kind = Kind::slot;
  std::uint32_t piece = 0;     ///< [0, 16)
  std::uint32_t channel = 0;   ///< [0, 256)
  std::uint32_t sequence = 0;  ///< modulo 2^18

  static constexpr std::uint32_t kSequences = 1 << 18;
  static constexpr std::uint32_t kChannels = 256;

  [[nodiscard]] std::uint32_t pack() const {
    return static_cast<std::uint32_t>(kind) << 30 | piece << 26 | channel << 18 |
           (sequence & (kSequences - 1));
  }
  static Immediate unpack(std::uint32_t bits) {
    return {static_cast<Kind>(bits >> 30), bits >> 26 & 15, bits >> 18 & (kChannels - 1),
            bits & (kSequences - 1)};
  }
};

/// One put as the receiver must know it, written into its memory.
struct RdmaSlot {
  static constexpr std::size_t kBytes = 256;
  static constexpr std::size_t kPayloadBytes = kBytes - 24;
  static constexpr std::uint32_t kInRegion = 0xffffffff;

  std::uint64_t offset = 0;  ///< in the region
  std::uint32_t tag = 0;
  std::uint32_t length = 0;  ///< of payload; kInRegion: the bytes are there already
  std::uint32_t pieces = 1;
  std::uint32_t total = 0;  ///< PiggybackedCredits, of the put's channel
  std::byte payload[kPayloadBytes];
};
static_assert(sizeof(RdmaSlot) == RdmaSlot::kBytes);

}  // namespace chorus
