// The messages of the control plane: framing, and reading what an unauthenticated peer may have
// written.
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
#include <utility>
#include <vector>

#include "base/secret.hpp"
#include "chorus/schedule.hpp"
#include "runtime/control/rank_list.hpp"

namespace chorus::wire {

using Bytes = std::vector<std::byte>;
/// Frames are shared: one result goes to thousands of ranks.
using Frame = std::shared_ptr<const Bytes>;

enum class Type : std::uint8_t {
  // From a rank.
  hello = 1,
  exchange,        ///< key, members, blob, the group whose verdict ends it, or ""
  exchange_query,  ///< key: who is missing?
  join_query,      ///< who is missing?
  open_group,      ///< key, members
  close_group,     ///< key
  lost,            ///< key, peer, why
  waiting,         ///< key, sequence, signature, waiting_for
  abort,           ///< key, reason
  goodbye,         ///< reason, empty if all is well
  ending,          ///< key, then for each peer: rank, messages sent to it, received from it
  note,            ///< key, to whom in the group, blob, its number among this rank's notes
  listening,       ///< Places where this rank takes over if the coordinator is lost
  follow,          ///< Follow: what this rank knows of the job that goes on with a successor
  exchange_done,   ///< number of the result, then as exchange: this rank has that result
  exchange_held,   ///< as exchange_result: what was wanted
  followed,        ///< what has come since `follow` is all that this rank had under way
  withdraw,        ///< key: this rank no longer takes part in the exchange
  shared_read,     ///< number of a shared frame, whether it could be opened
  heartbeat,       ///< nothing: what matters is that it is acknowledged
  // From a relay, which carries the connections of many ranks.
  arrive = 32,  ///< as hello: a rank that has proved the secret to a relay
  carried,      ///< rank, then the type and the body of what it says
  gone,         ///< rank, how its connection closed
  scattered,    ///< identity and host of another relay's process, how that ended, ranks it carried
  // From the coordinator.
  greeting = 64,
  refused,          ///< sentence, perhaps whether the others go on without this rank
  welcome,          ///< proof, who hosts the coordinator
  joined,           ///< rank that hosts the coordinator or -1, when this joining began (unix us)
  job_failed,       ///< sentence: the ranks will never all meet
  exchange_result,  ///< key, its number among all results, Table::write()
  exchange_failed,  ///< key, sentence
  missing,          ///< key (empty: the join), sentence; for the join: who was refused meanwhile,
                    ///< whether this rank is the one that logs it
  death,            ///< rank, who ("pid 12 on host" or empty), how, whether it was disconnected
  verdict,          ///< key, sentence
  waiting_status,   ///< key, sequence, sentence, whether this rank is the one that logs it
  host_left,        ///< the coordinator's process may end now; that is no death
  later,            ///< sentence: why not now; come again
  expelled,         ///< sentence: why this rank is disconnected
  noted,            ///< key, by whom in the group, blob, its number among that rank's notes
  appoint,          ///< be ready to take over
  successors,       ///< Successors: where to go if the coordinator is lost
  left,             ///< rank: to the successors alone
  goodbye_heard,    ///< the goodbye was heard: what closes now is no loss
  succeeded,        ///< rank that hosts the coordinator from now on; this joining goes on
  elsewhere,        ///< how many came, and how many were alive: too few, try the next successor
  wanted,           ///< number of a result that this rank has and others missed
  smaller_part,     ///< sentence: the network is split, and the job ends here
  shared,           ///< SharedFrame::reference(): where the frame is that stands here
  carry,            ///< to a relay: ranks, then the type and the body of what they are told
  admitted,         ///< to a relay, for a rank: as welcome, without the proof
  dismissed,        ///< to a relay, for a rank: its connection is to be closed
  go_to,            ///< to a relay: address and port of the one to which it connects instead
  full,             ///< from a relay: it carries as many as it can; there is another
  waiting_room,     ///< proof, how many processes wait to be taken in
  moved,            ///< proof, place, rank, world size: where this process is taken in
  places,           ///< Places of this coordinator, the first included
  // From both: of every rank what a successor has to know.
  roster = 127,  ///< first rank, then for each: who, identity of its process, whether it left
};

// What is believed of a length before its bytes have come.
constexpr std::size_t kMaxHandshake = 1024;
constexpr std::size_t kMaxBlob = 1 << 20;
constexpr std::size_t kMaxKey = 256;
constexpr std::size_t kMaxText = 4096;
constexpr std::size_t kMaxNote = 256;
/// Where a grown communicator meets: an address and 32 hex digits.
constexpr std::size_t kMaxPlace = 128;
/// Largest world.
constexpr int kMaxWorld = 1 << 17;
constexpr std::size_t kMaxFromRank = kMaxBlob + 8 * kMaxWorld + kMaxKey + 64;
constexpr std::size_t kMaxFromRelay = kMaxFromRank + 16;

constexpr std::string_view kMagic = "chorus-control";
/// Raised with every change of the messages. Ranks of another protocol are refused by name.
constexpr std::uint32_t kProtocol = 9;
/// "0.2.0 (control protocol 9)"
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
  Writer& append(std::span<const std::byte> body);  ///< fields of another frame, as they are
  Writer& ranks(const RankList& value);
  Writer& ranks(std::span<const Rank> value) { return ranks(RankList(value)); }
  /// The finished frame, its length filled in.
  [[nodiscard]] Bytes take();
  [[nodiscard]] Frame share() { return std::make_shared<const Bytes>(take()); }
  /// The same of a frame that goes on, by `behind` bytes, in another place.
  [[nodiscard]] Frame share(std::size_t behind);

 private:
  Bytes bytes_;
};

/// Type and body of a whole frame.
[[nodiscard]] std::span<const std::byte> content_of(const Bytes& frame);

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
  RankList ranks(int world_size);
  /// Throws if anything is left.
  void end() const;
  /// What has not been read.
  [[nodiscard]] std::span<const std::byte> rest() const { return rest_; }

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
  void add(const Frame& frame) { add(*frame, frame); }
  /// The same of bytes that go on as those before them.
  void add(std::span<const std::byte> bytes, std::shared_ptr<const void> owner);
  /// Sends what the socket takes. False when the connection is broken (errno says why).
  [[nodiscard]] bool flush(int fd);
  [[nodiscard]] bool empty() const { return parts_.empty(); }
  [[nodiscard]] std::size_t size_bytes() const { return size_bytes_; }
  void clear();

 private:
  struct Part {
    std::span<const std::byte> bytes;
    std::shared_ptr<const void> owner;
  };
  std::deque<Part> parts_;
  std::size_t offset_ = 0;  ///< of parts_.front() already sent
  std::size_t size_bytes_ = 0;
};

// The handshake. Both ends prove the secret over both nonces and all that was said, each with its
// own word, so that neither an unauthenticated peer nor a fake coordinator can answer with what it
// was sent.

using Nonce = std::array<std::uint8_t, 16>;
[[nodiscard]] Nonce random_nonce();

struct Greeting {
  std::string magic, version;
  Nonce nonce;
};
/// What a process comes to a coordinator for: to join; to be taken in by a job that may have begun;
/// to ask how many wait for that; to say where they are taken in.
enum class Wish : std::uint8_t { join, rejoin, count, offer };

struct Hello {
  std::string version;
  Nonce nonce;
  Rank rank = 0;
  int world_size = 0;
  std::uint32_t pid = 0;
  std::string host;           ///< name of the machine, for people
  std::string identity;       ///< of the process, for comparing (process_identity())
  bool may_succeed = false;   ///< it can hold the coordinator if the first one is lost
  std::uint64_t session = 0;  ///< the joining that it follows to a successor; 0: it joins
  // Of a relay, for which the rank speaks in whose process it is.
  std::string relay_address;     ///< where other relays find it
  std::uint16_t relay_port = 0;  ///< 0: this is no relay
  Wish wish = Wish::join;
  std::string place;  ///< of an offer, whose first rank and world size stand above
  Proof proof;
};

/// Where a coordinator listens.
struct Place {
  std::string address;  ///< numeric
  std::uint16_t port = 0;

  bool operator==(const Place&) const = default;
};
/// At one place for each interface of its host, and at most at so many.
constexpr std::size_t kMaxPlaces = 8;

/// Where a rank goes when the coordinator is lost, in this order.
struct Successor {
  Rank rank = 0;
  std::vector<Place> places;
};
/// As many are kept ready.
constexpr std::size_t kMaxSuccessors = 3;

struct Death {
  Rank rank = 0;
  std::string who, how;
  bool expelled = false;  ///< by the coordinator
};

/// How a rank lost the coordinator: its connection closed, which is its process's end; its machine
/// stopped answering, which may be the network's; or it had said that it goes.
enum class Loss : std::uint8_t { closed, silent, left };

/// What a rank brings to a successor of the coordinator.
struct Follow {
  Loss loss = Loss::closed;
  Rank host_rank = -1;            ///< whose process held the coordinator, or -1
  std::string host_text;          ///< "pid 12 on host"
  std::uint64_t last_result = 0;  ///< number of the latest exchange_result it has
  std::vector<Death> deaths;      ///< all, in the order in which they were told
  std::vector<Successor> successors;
  std::vector<std::pair<std::string, std::string>> verdicts;  ///< the latest: key, sentence
};
constexpr std::size_t kMaxVerdictsBrought = 64;
/// Ranks in one frame of the roster.
constexpr Rank kRosterPart = 512;

/// One rank in a roster.
struct Known {
  std::string who, identity;
  bool left = false;
};

[[nodiscard]] Frame places_frame(Type type, const std::vector<Place>& places);
[[nodiscard]] std::vector<Place> read_places(Reader& body);
[[nodiscard]] Frame successors_frame(const std::vector<Successor>& all);
[[nodiscard]] std::vector<Successor> read_successors(Reader& body, int world_size);
void write_death(Writer& to, const Death& death);
[[nodiscard]] Death read_death(Reader& body, int world_size);
[[nodiscard]] Frame follow_frame(const Follow& follow);
[[nodiscard]] Follow read_follow(Reader& body, int world_size);
/// The frames of a whole roster.
[[nodiscard]] std::vector<Frame> roster_frames(const std::vector<Known>& roster);
/// Puts a part where it belongs in `roster` ([world_size]).
void read_roster(Reader& body, std::vector<Known>& roster);

[[nodiscard]] Frame greeting_frame(const Nonce& nonce);
[[nodiscard]] Greeting read_greeting(std::span<const std::byte> body);
[[nodiscard]] Frame hello_frame(Hello hello, const Nonce& server_nonce, const Secret& secret);
[[nodiscard]] Hello read_hello(std::span<const std::byte> body);
[[nodiscard]] bool proven(const Hello& hello, const Nonce& server_nonce, const Secret& secret);
[[nodiscard]] Proof server_proof(const Secret& secret, const Nonce& server, const Nonce& client);

}  // namespace chorus::wire
