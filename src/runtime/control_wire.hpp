// The messages of the control plane: framing, and reading what a stranger may have written.
//
// A frame is a 32-bit length (of what follows), a type byte and a body. Integers are little
// endian; text and blobs are a 32-bit length and bytes. Described in docs/bootstrap.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.hpp"
#include "chorus/schedule.hpp"

namespace chorus::wire {

using Bytes = std::vector<std::byte>;
/// Frames are shared: one result goes to thousands of ranks.
using Frame = std::shared_ptr<const Bytes>;

enum class Type : std::uint8_t {
  // From a rank.
  hello = 1,
  exchange,        ///< key, members, blob
  exchange_query,  ///< key: who is missing?
  join_query,      ///< who is missing?
  open_group,      ///< key, members
  close_group,     ///< key
  lost,            ///< key, peer, why
  waiting,         ///< key, sequence, signature, waiting_for
  abort,           ///< key, reason
  farewell,        ///< reason, empty if all is well
  ending,          ///< key, then for each peer: rank, messages sent to it, received from it
  note,            ///< key, to whom in the group, blob
  // From the coordinator.
  greeting = 64,
  refused,          ///< sentence
  welcome,          ///< proof, who hosts the coordinator
  joined,           ///< rank that hosts the coordinator or -1, when this joining began (unix us)
  job_failed,       ///< sentence: the ranks will never all meet
  exchange_result,  ///< key, blobs
  exchange_failed,  ///< key, sentence
  missing,          ///< key (empty: the join), sentence; for the join: who was refused meanwhile,
                    ///< whether this rank is the one that logs it
  death,            ///< rank, who ("pid 12 on host" or empty), how, whether it was disconnected
  verdict,          ///< key, sentence
  waiting_status,   ///< key, sequence, sentence, whether this rank is the one that logs it
  host_left,        ///< the coordinator's process may end now; that is no death
  later,            ///< sentence: why not now; come again
  expelled,         ///< sentence: why this rank is disconnected
  noted,            ///< key, by whom in the group, blob
};

// What is believed of a length before its bytes have come.
constexpr std::size_t kMaxHandshake = 1024;
constexpr std::size_t kMaxBlob = 1 << 20;
constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxNote = 256;
/// Largest world: what one coordinator keeps connections to.
constexpr int kMaxWorld = 65536;
constexpr std::size_t kMaxFromRank = kMaxBlob + 4 * kMaxWorld + kMaxKey + 64;

constexpr std::string_view kMagic = "chorus-control";
/// Raised with every change of the messages. Ranks of another protocol are refused by name.
constexpr std::uint32_t kProtocol = 4;
/// "0.2.0 (control protocol 4)"
[[nodiscard]] std::string version();

/// The peer wrote what no Chorus of this version writes.
class Malformed : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class Writer {
 public:
  explicit Writer(Type type);
  Writer& u8(std::uint8_t value);
  Writer& u32(std::uint32_t value);
  Writer& u64(std::uint64_t value);
  Writer& i32(std::int32_t value) { return u32(static_cast<std::uint32_t>(value)); }
  Writer& text(std::string_view value);  ///< cut to kMaxText
  Writer& blob(std::span<const std::byte> value);
  Writer& raw(std::span<const std::uint8_t> value);
  Writer& ranks(std::span<const Rank> value);
  /// The finished frame, its length filled in.
  [[nodiscard]] Bytes take();
  [[nodiscard]] Frame share() { return std::make_shared<const Bytes>(take()); }

 private:
  Bytes bytes_;
};

/// Reads a body; every form throws Malformed rather than read past the end.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> body) : rest_(body) {}
  std::uint8_t u8();
  std::uint32_t u32();
  std::uint64_t u64();
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }
  std::string text(std::size_t limit = kMaxText);
  std::span<const std::byte> blob(std::size_t limit);
  std::array<std::uint8_t, 16> raw16();
  /// Distinct ranks of a world of `world_size`.
  std::vector<Rank> ranks(int world_size);
  /// Throws if anything is left.
  void end() const;

 private:
  std::span<const std::byte> take(std::size_t count);
  std::span<const std::byte> rest_;
};

/// Bytes of a stream, cut into frames. Memory grows with what came, not with what was announced.
class Inbox {
 public:
  explicit Inbox(std::size_t limit) : limit_(limit) {}
  void set_limit(std::size_t limit) { limit_ = limit; }
  void add(std::span<const std::byte> bytes);
  struct Item {
    Type type;
    std::span<const std::byte> body;  ///< valid until the next call of add()
  };
  /// The next whole frame. Throws Malformed if its length is over the limit, or zero.
  std::optional<Item> next();

 private:
  std::size_t limit_;
  Bytes bytes_;
  std::size_t begin_ = 0;
};

/// Frames on their way out of a non-blocking socket.
class Outbox {
 public:
  void add(Frame frame);
  /// Sends what the socket takes. False when the connection is broken (errno says why).
  [[nodiscard]] bool flush(int fd);
  [[nodiscard]] bool empty() const { return frames_.empty(); }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  void clear();

 private:
  std::deque<Frame> frames_;
  std::size_t offset_ = 0;  ///< of frames_.front() already sent
  std::size_t size_bytes_ = 0;
};

// The handshake. Both ends prove the secret over both nonces and all that was said, each with its
// own word, so that neither a stranger nor a fake coordinator can answer with what it was sent.

using Nonce = std::array<std::uint8_t, 16>;
[[nodiscard]] Nonce random_nonce();

struct Greeting {
  std::string magic, version;
  Nonce nonce;
};
struct Hello {
  std::string version;
  Nonce nonce;
  Rank rank = 0;
  int world_size = 0;
  std::uint32_t pid = 0;
  std::string host;      ///< name of the machine, for people
  std::string identity;  ///< of the process, for comparing (process_identity())
  Proof proof;
};

[[nodiscard]] Frame greeting_frame(const Nonce& nonce);
[[nodiscard]] Greeting read_greeting(std::span<const std::byte> body);
[[nodiscard]] Frame hello_frame(Hello hello, const Nonce& server_nonce, const Secret& secret);
[[nodiscard]] Hello read_hello(std::span<const std::byte> body);
[[nodiscard]] bool proven(const Hello& hello, const Nonce& server_nonce, const Secret& secret);
[[nodiscard]] Proof server_proof(const Secret& secret, const Nonce& server, const Nonce& client);

}  // namespace chorus::wire
