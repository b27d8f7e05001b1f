#include "runtime/control/wire.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"

namespace chorus::wire {
namespace {

constexpr std::size_t kHeader = 4;
/// Of an Inbox between large frames.
constexpr std::size_t kKept = 128 * 1024;

void store_u32(std::byte* to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint32_t load_u32(const std::byte* from) {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(from[i]) << (8 * i);
  return value;
}

/// All of a hello but its proof, behind the word that only ranks say.
Bytes hello_message(const Hello& hello, const Nonce& server_nonce) {
  Writer writer(Type::hello);
  writer.text("rank").raw(server_nonce).raw(hello.nonce).text(hello.version);
  writer.i32(hello.rank).i32(hello.world_size).u32(hello.pid);
  writer.text(hello.host).text(hello.identity);
  writer.u8(hello.may_succeed ? 1 : 0).u64(hello.session);
  writer.text(hello.relay_address).u32(hello.relay_port);
  writer.u8(static_cast<std::uint8_t>(hello.wish)).text(hello.place);
  return writer.take();
}

}  // namespace

std::string version() { return fmt::format("{} (control protocol {})", CHORUS_VERSION, kProtocol); }

Writer::Writer(Type type) : bytes_(kHeader + 1) { bytes_[kHeader] = static_cast<std::byte>(type); }

Writer& Writer::u8(std::uint8_t value) {
  bytes_.push_back(static_cast<std::byte>(value));
  return *this;
}

Writer& Writer::u32(std::uint32_t value) {
  bytes_.resize(bytes_.size() + 4);
  store_u32(bytes_.data() + bytes_.size() - 4, value);
  return *this;
}

Writer& Writer::u64(std::uint64_t value) {
  return u32(static_cast<std::uint32_t>(value)).u32(static_cast<std::uint32_t>(value >> 32));
}

Writer& Writer::text(std::string_view value) {
  return blob(std::as_bytes(std::span(value.substr(0, kMaxText))));
}

Writer& Writer::blob(std::span<const std::byte> value) {
  u32(static_cast<std::uint32_t>(value.size()));
  bytes_.insert(bytes_.end(), value.begin(), value.end());
  return *this;
}

Writer& Writer::raw(std::span<const std::uint8_t> value) {
  const auto bytes = std::as_bytes(value);
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  return *this;
}

Writer& Writer::append(std::span<const std::byte> body) {
  bytes_.insert(bytes_.end(), body.begin(), body.end());
  return *this;
}

Writer& Writer::ranks(const RankList& value) {
  u32(static_cast<std::uint32_t>(value.runs().size()));
  for (std::size_t r = 0; r < value.runs().size(); ++r) {
    i32(value.runs()[r].first).u32(value.length(r));
  }
  return *this;
}

Bytes Writer::take() {
  CHORUS_CHECK(bytes_.size() - kHeader <= UINT32_MAX, "a control frame is below 4 GiB");
  store_u32(bytes_.data(), static_cast<std::uint32_t>(bytes_.size() - kHeader));
  return std::move(bytes_);
}

Frame Writer::share(std::size_t behind) {
  const std::size_t size = bytes_.size() - kHeader + behind;
  CHORUS_CHECK(size <= UINT32_MAX, "a control frame is below 4 GiB");
  store_u32(bytes_.data(), static_cast<std::uint32_t>(size));
  return std::make_shared<const Bytes>(std::move(bytes_));
}

std::span<const std::byte> content_of(const Bytes& frame) {
  return std::span(frame).subspan(kHeader);
}

std::span<const std::byte> Reader::take(std::size_t count) {
  if (count > rest_.size()) throw Malformed("a message ends too early");
  const auto taken = rest_.first(count);
  rest_ = rest_.subspan(count);
  return taken;
}

std::uint8_t Reader::u8() { return std::to_integer<std::uint8_t>(take(1)[0]); }

std::uint32_t Reader::u32() { return load_u32(take(4).data()); }

std::uint64_t Reader::u64() {
  const std::uint64_t low = u32();
  return low | std::uint64_t{u32()} << 32;
}

std::span<const std::byte> Reader::blob(std::size_t limit) {
  const std::uint32_t size = u32();
  if (size > limit) throw Malformed(fmt::format("{} bytes where at most {} belong", size, limit));
  return take(size);
}

std::string Reader::text(std::size_t limit) {
  const auto bytes = blob(limit);
  std::string value(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  // What is printed later must not be able to move the cursor.
  std::replace_if(
      value.begin(), value.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return value;
}

std::array<std::uint8_t, 16> Reader::raw16() {
  std::array<std::uint8_t, 16> value{};
  std::memcpy(value.data(), take(16).data(), 16);
  return value;
}

RankList Reader::ranks(int world_size) {
  const auto world = static_cast<std::uint32_t>(world_size);
  const std::uint32_t runs = u32();
  if (runs == 0 || runs > world) {
    throw Malformed(fmt::format("a group of {} runs of ranks in a world of {}", runs, world_size));
  }
  RankList ranks;
  std::vector<std::pair<Rank, std::uint32_t>> sorted;
  for (std::uint32_t i = 0; i < runs; ++i) {
    const Rank first = i32();
    const std::uint32_t count = u32();
    if (first < 0 || count == 0 || count > world ||
        static_cast<std::uint32_t>(first) > world - count) {
      throw Malformed(fmt::format("a group with bad ranks: {} from {} on", count, first));
    }
    ranks.add(first, count);
    sorted.emplace_back(first, count);
  }
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i - 1].first + static_cast<Rank>(sorted[i - 1].second) > sorted[i].first) {
      throw Malformed(fmt::format("a group with a repeated rank {}", sorted[i].first));
    }
  }
  return ranks;
}

void Reader::end() const {
  if (!rest_.empty()) throw Malformed("a message is longer than its fields");
}

void Inbox::add(std::span<const std::byte> bytes) {
  if (begin_ > 0 && begin_ == bytes_.size()) {
    bytes_.clear();
    begin_ = 0;
    // One large result is no reason to keep its memory for ever.
    if (bytes_.capacity() > kKept) bytes_ = Bytes();
  } else if (begin_ > bytes_.size() / 2) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin_));
    begin_ = 0;
  }
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::optional<Inbox::Item> Inbox::next() {
  const std::size_t available = bytes_.size() - begin_;
  if (available < kHeader) return std::nullopt;
  const std::size_t size = load_u32(bytes_.data() + begin_);
  if (size == 0 || size > limit_) {
    throw Malformed(fmt::format("a message of {} bytes where 1 to {} belong", size, limit_));
  }
  if (available < kHeader + size) return std::nullopt;
  const std::byte* frame = bytes_.data() + begin_ + kHeader;
  begin_ += kHeader + size;
  return Item{static_cast<Type>(frame[0]), {frame + 1, size - 1}};
}

void Outbox::add(std::span<const std::byte> bytes, std::shared_ptr<const void> owner) {
  size_bytes_ += bytes.size();
  parts_.push_back({bytes, std::move(owner)});
}

bool Outbox::flush(int fd) {
  while (!parts_.empty()) {
    const std::span<const std::byte> part = parts_.front().bytes;
    const ssize_t sent =
        ::send(fd, part.data() + offset_, part.size() - offset_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    offset_ += static_cast<std::size_t>(sent);
    if (offset_ < part.size()) continue;
    size_bytes_ -= part.size();
    parts_.pop_front();
    offset_ = 0;
  }
  return true;
}

void Outbox::clear() {
  parts_.clear();
  offset_ = 0;
  size_bytes_ = 0;
}

Nonce random_nonce() { return Secret::random().bytes; }

Frame greeting_frame(const Nonce& nonce) {
  return Writer(Type::greeting).text(kMagic).text(version()).raw(nonce).share();
}

Greeting read_greeting(std::span<const std::byte> body) {
  Reader reader(body);
  Greeting greeting{reader.text(32), reader.text(64), reader.raw16()};
  if (greeting.magic != kMagic) throw Malformed("it does not greet as a Chorus coordinator");
  return greeting;
}

Frame hello_frame(Hello hello, const Nonce& server_nonce, const Secret& secret) {
  Writer writer(Type::hello);
  writer.text(kMagic).text(hello.version).raw(hello.nonce);
  writer.i32(hello.rank).i32(hello.world_size).u32(hello.pid);
  writer.text(hello.host).text(hello.identity);
  writer.u8(hello.may_succeed ? 1 : 0).u64(hello.session);
  writer.text(hello.relay_address).u32(hello.relay_port);
  writer.u8(static_cast<std::uint8_t>(hello.wish)).text(hello.place);
  writer.raw(prove(secret, hello_message(hello, server_nonce)));
  return writer.share();
}

Hello read_hello(std::span<const std::byte> body) {
  Reader reader(body);
  if (reader.text(32) != kMagic) throw Malformed("it does not speak as a Chorus rank");
  Hello hello;
  hello.version = reader.text(64);
  hello.nonce = reader.raw16();
  hello.rank = reader.i32();
  hello.world_size = reader.i32();
  hello.pid = reader.u32();
  hello.host = reader.text(256);
  hello.identity = reader.text(256);
  hello.may_succeed = reader.u8() != 0;
  hello.session = reader.u64();
  hello.relay_address = reader.text(64);
  const std::uint32_t port = reader.u32();
  if (port > 65535) throw Malformed("a relay at no port");  // the proof is of the lower half
  hello.relay_port = static_cast<std::uint16_t>(port);
  const std::uint8_t wish = reader.u8();
  if (wish > static_cast<std::uint8_t>(Wish::offer)) throw Malformed("a wish that there is not");
  hello.wish = static_cast<Wish>(wish);
  hello.place = reader.text(kMaxPlace);
  hello.proof = reader.raw16();
  reader.end();
  return hello;
}

bool proven(const Hello& hello, const Nonce& server_nonce, const Secret& secret) {
  return same(hello.proof, prove(secret, hello_message(hello, server_nonce)));
}

Proof server_proof(const Secret& secret, const Nonce& server, const Nonce& client) {
  return prove(secret, Writer(Type::welcome).text("coordinator").raw(client).raw(server).take());
}

// Succession.

namespace {

constexpr std::size_t kMaxAddress = 64;

Rank read_rank(Reader& body, int world_size) {
  const Rank rank = body.i32();
  if (rank < 0 || rank >= world_size) throw Malformed("a rank outside the world");
  return rank;
}

void write_places(Writer& to, const std::vector<Place>& places) {
  to.u8(static_cast<std::uint8_t>(places.size()));
  for (const Place& place : places) to.text(place.address).u32(place.port);
}

void write_successors(Writer& to, const std::vector<Successor>& all) {
  to.u8(static_cast<std::uint8_t>(all.size()));
  for (const Successor& each : all) write_places(to.i32(each.rank), each.places);
}

}  // namespace

Frame places_frame(Type type, const std::vector<Place>& places) {
  Writer writer(type);
  write_places(writer, places);
  return writer.share();
}

std::vector<Place> read_places(Reader& body) {
  std::vector<Place> places(body.u8());
  if (places.size() > kMaxPlaces) throw Malformed("too many places");
  for (Place& place : places) {
    place.address = body.text(kMaxAddress);
    const std::uint32_t port = body.u32();
    if (port == 0 || port > 65535) throw Malformed("a place without a port");
    place.port = static_cast<std::uint16_t>(port);
  }
  return places;
}

Frame successors_frame(const std::vector<Successor>& all) {
  Writer writer(Type::successors);
  write_successors(writer, all);
  return writer.share();
}

std::vector<Successor> read_successors(Reader& body, int world_size) {
  std::vector<Successor> all(body.u8());
  if (all.size() > kMaxSuccessors) throw Malformed("too many successors");
  for (Successor& each : all) {
    each.rank = read_rank(body, world_size);
    each.places = read_places(body);
    if (each.places.empty()) throw Malformed("a successor without a place");
  }
  return all;
}

void write_death(Writer& to, const Death& death) {
  to.i32(death.rank).text(death.who).text(death.how).u8(death.expelled ? 1 : 0);
}

Death read_death(Reader& body, int world_size) {
  Death death;
  death.rank = read_rank(body, world_size);
  death.who = body.text();
  death.how = body.text();
  death.expelled = body.u8() != 0;
  return death;
}

Frame follow_frame(const Follow& follow) {
  Writer writer(Type::follow);
  writer.u8(static_cast<std::uint8_t>(follow.loss)).i32(follow.host_rank).text(follow.host_text);
  writer.u64(follow.last_result).u32(static_cast<std::uint32_t>(follow.deaths.size()));
  for (const Death& death : follow.deaths) write_death(writer, death);
  write_successors(writer, follow.successors);
  writer.u8(static_cast<std::uint8_t>(follow.verdicts.size()));
  for (const auto& [key, sentence] : follow.verdicts) writer.text(key).text(sentence);
  return writer.share();
}

Follow read_follow(Reader& body, int world_size) {
  Follow follow;
  const std::uint8_t loss = body.u8();
  if (loss > static_cast<std::uint8_t>(Loss::left)) throw Malformed("an unknown kind of loss");
  follow.loss = static_cast<Loss>(loss);
  follow.host_rank = body.i32();
  if (follow.host_rank < -1 || follow.host_rank >= world_size) {
    throw Malformed("a coordinator in the process of a rank that is not there");
  }
  follow.host_text = body.text();
  follow.last_result = body.u64();
  const std::uint32_t deaths = body.u32();
  if (deaths > static_cast<std::uint32_t>(world_size)) throw Malformed("more deaths than ranks");
  for (std::uint32_t i = 0; i < deaths; ++i) follow.deaths.push_back(read_death(body, world_size));
  follow.successors = read_successors(body, world_size);
  const std::uint8_t verdicts = body.u8();
  if (verdicts > kMaxVerdictsBrought) throw Malformed("too many verdicts");
  for (std::uint8_t i = 0; i < verdicts; ++i) {
    std::string key = body.text(kMaxKey);
    follow.verdicts.emplace_back(std::move(key), body.text(2 * kMaxText));
  }
  body.end();
  return follow;
}

std::vector<Frame> roster_frames(const std::vector<Known>& roster) {
  std::vector<Frame> frames;
  for (std::size_t first = 0; first < roster.size(); first += kRosterPart) {
    const std::size_t count = std::min<std::size_t>(kRosterPart, roster.size() - first);
    Writer writer(Type::roster);
    writer.u32(static_cast<std::uint32_t>(first)).u32(static_cast<std::uint32_t>(count));
    for (const Known& each : std::span(roster).subspan(first, count)) {
      writer.text(each.who).text(each.identity).u8(each.left ? 1 : 0);
    }
    frames.push_back(writer.share());
  }
  return frames;
}

void read_roster(Reader& body, std::vector<Known>& roster) {
  const std::size_t first = body.u32();
  const std::size_t count = body.u32();
  if (first > roster.size() || count > roster.size() - first) {
    throw Malformed("a roster of more than all ranks");
  }
  for (Known& each : std::span(roster).subspan(first, count)) {
    each.who = body.text(512);
    each.identity = body.text(256);
    each.left = body.u8() != 0;
  }
  body.end();
}

}  // namespace chorus::wire
