#include "runtime/control_wire.hpp"

#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.hpp"

namespace chorus::wire {
namespace {

constexpr std::size_t kHeader = 4;

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

Writer& Writer::ranks(std::span<const Rank> value) {
  u32(static_cast<std::uint32_t>(value.size()));
  for (const Rank rank : value) i32(rank);
  return *this;
}

Bytes Writer::take() {
  CHORUS_CHECK(bytes_.size() - kHeader <= UINT32_MAX, "a control frame is below 4 GiB");
  store_u32(bytes_.data(), static_cast<std::uint32_t>(bytes_.size() - kHeader));
  return std::move(bytes_);
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

std::vector<Rank> Reader::ranks(int world_size) {
  const std::uint32_t count = u32();
  if (count == 0 || count > static_cast<std::uint32_t>(world_size)) {
    throw Malformed(fmt::format("a group of {} ranks in a world of {}", count, world_size));
  }
  std::vector<Rank> ranks(count);
  std::vector<bool> seen(static_cast<std::size_t>(world_size));
  for (Rank& rank : ranks) {
    rank = i32();
    if (rank < 0 || rank >= world_size || seen[static_cast<std::size_t>(rank)]) {
      throw Malformed(fmt::format("a group with a bad or repeated rank {}", rank));
    }
    seen[static_cast<std::size_t>(rank)] = true;
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

void Outbox::add(Frame frame) {
  size_bytes_ += frame->size();
  frames_.push_back(std::move(frame));
}

bool Outbox::flush(int fd) {
  while (!frames_.empty()) {
    const Bytes& frame = *frames_.front();
    const ssize_t sent =
        ::send(fd, frame.data() + offset_, frame.size() - offset_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    offset_ += static_cast<std::size_t>(sent);
    if (offset_ < frame.size()) continue;
    size_bytes_ -= frame.size();
    frames_.pop_front();
    offset_ = 0;
  }
  return true;
}

void Outbox::clear() {
  frames_.clear();
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

}  // namespace chorus::wire
