// Readers of sockets: frames of the control plane at both ends, published addresses, and what a tcp
// peer says: its greeting and its frames.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "chorus/error.hpp"
#include "runtime/control/coordinator/judge.hpp"
#include "runtime/control/impl.hpp"
#include "tests/fuzz/all_readers.hpp"
#include "transports/rdma/wire.hpp"
#include "transports/tcp/hub.hpp"
#include "transports/tcp/link.hpp"

namespace chorus::fuzz {
namespace {

using std::chrono::milliseconds;

constexpr int kRanks = 4;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Cuts an input into pieces: each says in its first byte who sends it and in the next two how
/// long it is.
template <class Take>
void for_each_piece(std::string_view input, Take take) {
  while (input.size() >= 3) {
    const auto who = static_cast<unsigned char>(input[0]);
    const std::size_t announced = static_cast<unsigned char>(input[1]) |
                                  std::size_t{static_cast<unsigned char>(input[2])} << 8;
    input.remove_prefix(3);
    const std::size_t size = std::min(announced, input.size());
    take(who, input.substr(0, size));
    input.remove_prefix(size);
  }
}

std::string piece(int who, std::string_view content) {
  return std::string{static_cast<char>(who), static_cast<char>(content.size() & 0xff),
                     static_cast<char>(content.size() >> 8)} +
         std::string(content);
}

// The coordinator's end.

Judge joined_judge(Judge::Time now) {
  Judge judge(
      {.world_size = kRanks, .launcher = true, .host_identity = "h", .host_text = "pid 1 on h"});
  for (Rank rank = 0; rank < kRanks; ++rank) {
    wire::Hello hello;
    hello.rank = rank;
    hello.world_size = kRanks;
    hello.pid = 100;
    hello.host = "h";
    hello.identity = rank == 0 ? "h" : "other";
    (void)judge.admit(hello, now);
  }
  return judge;
}

/// A piece's content is a frame's type and body; its sender's upper bits say what else happens.
std::string control_coordinator(const std::string& input) {
  Judge::Time now{};
  Judge judge = joined_judge(now);
  std::array<bool, kRanks> connected{};
  connected.fill(true);
  for_each_piece(input, [&](unsigned who, std::string_view content) {
    const Rank rank = static_cast<Rank>(who % kRanks);
    now += milliseconds(who >> 2);
    judge.tick(now);
    if (content.empty()) {
      if (who >= 128) judge.ended(rank, "exited with status 3", now);
    } else if (connected[static_cast<std::size_t>(rank)]) {
      try {
        judge.received(rank, static_cast<wire::Type>(content[0]),
                       wire::Reader(bytes_of(content.substr(1))), now);
      } catch (const wire::Malformed&) {
        connected[static_cast<std::size_t>(rank)] = false;
        judge.expelled(rank, "it sent what no rank sends", now);
      }
    }
    (void)judge.take_orders();
  });
  for (int turn = 0; turn < 8 && judge.deadline(); ++turn) {
    now = std::max(now, *judge.deadline());
    judge.tick(now);
    (void)judge.take_orders();
  }
  return "";
}

template <class... Parts>
std::string frame_content(wire::Writer writer) {
  const wire::Bytes bytes = writer.take();
  return {reinterpret_cast<const char*>(bytes.data()) + 4, bytes.size() - 4};
}

std::vector<std::string> coordinator_samples() {
  using wire::Type;
  using wire::Writer;
  const std::vector<Rank> all = {0, 1, 2, 3};
  const std::vector<Rank> two = {1, 3};
  const std::byte blob[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::string exchange;
  std::string groups;
  for (const Rank rank : all) {
    exchange +=
        piece(rank, frame_content(Writer(Type::exchange).text("e").ranks(all).blob(blob).text("")));
    groups += piece(rank, frame_content(Writer(Type::open_group).text("g").ranks(all)));
  }
  exchange += piece(1, frame_content(Writer(Type::exchange_query).text("e")));
  std::string failures = groups;
  failures += piece(
      0,
      frame_content(Writer(Type::waiting).text("g").u64(5).text("all_reduce(count 1)").text("2")));
  failures += piece(
      1,
      frame_content(Writer(Type::waiting).text("g").u64(5).text("all_gather(count 1)").text("2")));
  failures += piece(2, frame_content(Writer(Type::lost).text("g").i32(3).text("reset")));
  failures += piece(2, frame_content(Writer(Type::ending).text("g").i32(1).u32(2).u32(3)));
  std::string ends = groups;
  ends += piece(1, frame_content(Writer(Type::open_group).text("h").ranks(two)));
  ends += piece(0, frame_content(Writer(Type::abort).text("g").text("enough")));
  ends += piece(1, frame_content(Writer(Type::close_group).text("g")));
  ends += piece(2, frame_content(Writer(Type::goodbye).text("")));
  ends += piece(131, "") + piece(3, frame_content(Writer(Type::join_query)));
  return {exchange, groups, failures, ends};
}

// A rank's end.

/// A piece's content is a frame's type and body.
std::string control_rank(const std::string& input) {
  Control::Impl control;
  control.world_size = kRanks;
  control.groups["g"].members = {0, 1, 2, 3};
  control.exchanges["e"];
  try {
    for_each_piece(input, [&](unsigned, std::string_view content) {
      if (content.empty()) return;
      control.hear(static_cast<wire::Type>(content[0]), wire::Reader(bytes_of(content.substr(1))));
    });
  } catch (const wire::Malformed&) {
  }
  return "";
}

std::vector<std::string> rank_samples() {
  using wire::Type;
  using wire::Writer;
  const std::byte blob[] = {std::byte{7}};
  return {
      piece(0, frame_content(Writer(Type::joined).i32(0).u64(1))) +
          piece(0,
                frame_content(Writer(Type::exchange_result).text("e").u64(1).u32(1).blob(blob))) +
          piece(0, frame_content(Writer(Type::missing).text("e").text("2, 3"))) +
          piece(0,
                frame_content(Writer(Type::waiting_status).text("g").u64(4).text("rank 2").u8(1))),
      piece(0, frame_content(Writer(Type::death).i32(2).text("pid 3 on h").text("killed").u8(0))) +
          piece(0, frame_content(Writer(Type::verdict).text("g").text("it failed"))) +
          piece(0, frame_content(Writer(Type::exchange_failed).text("e").text("why"))) +
          piece(0, frame_content(Writer(Type::host_left))),
      piece(0, frame_content(Writer(Type::successors).u8(1).i32(2).text("127.0.0.1").u32(9))) +
          piece(0, frame_content(Writer(Type::roster).u32(3).u32(1).text("who").text("id").u8(0))) +
          piece(0, frame_content(Writer(Type::left).i32(3))) +
          piece(0, frame_content(Writer(Type::succeeded).i32(2))) +
          piece(0, frame_content(Writer(Type::smaller_part).text("split"))) +
          piece(0, frame_content(Writer(Type::goodbye_heard))),
      piece(0, frame_content(Writer(Type::refused).text("no")))};
}

// Before the handshake: a stream of whole frames, and what is said before a secret is proved.

std::string control_stream(const std::string& input) {
  wire::Inbox inbox(wire::kMaxHandshake);
  std::string_view rest = input;
  try {
    while (!rest.empty()) {
      // In pieces of different lengths, as sockets bring them.
      const std::size_t size = std::min<std::size_t>(1 + rest.size() % 61, rest.size());
      inbox.add(bytes_of(rest.substr(0, size)));
      rest.remove_prefix(size);
      while (const auto item = inbox.next()) {
        if (item->type == wire::Type::greeting) {
          (void)wire::read_greeting(item->body);
        } else {
          const wire::Hello hello = wire::read_hello(item->body);
          (void)wire::proven(hello, {}, {});
        }
      }
    }
  } catch (const wire::Malformed&) {
  }
  return "";
}

std::vector<std::string> stream_samples() {
  wire::Hello hello;
  hello.version = wire::version();
  hello.world_size = 2;
  hello.host = hello.identity = "h";
  std::string both;
  for (const wire::Frame& frame : {wire::greeting_frame({}), wire::hello_frame(hello, {}, {})}) {
    both.append(reinterpret_cast<const char*>(frame->data()), frame->size());
  }
  return {both};
}

// Published addresses.

std::string addresses(const std::string& input) {
  (void)TcpAddress::parse(bytes_of(input));
  if (const auto address = RdmaAddress::parse(bytes_of(input))) {
    if (std::string_view(address->reason.data()).size() >= address->reason.size()) {
      return "a reason without an end";
    }
  }
  return "";
}

std::vector<std::string> address_samples() {
  TcpAddress tcp;
  tcp.magic = TcpAddress::kMagic;
  tcp.num_sockets = 2;
  tcp.version = 4;
  tcp.num_channels = 2;
  RdmaAddress rdma;
  rdma.control = tcp;
  rdma.num_ports = 1;
  rdma.set_reason("none");
  const auto text = [](std::span<const std::byte> bytes) {
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  return {text(tcp.bytes()), text(rdma.bytes())};
}

// A tcp peer. The listening end is the real one, over loopback.

struct TcpEnd {
  static constexpr int kSockets = 2;
  static constexpr LinkConfig kConfig{
      .region_bytes = 1 << 14, .num_channels = 2, .max_outstanding = 4, .timeout_ms = 1000};

  Secret secret{};
  std::shared_ptr<TcpHub> hub =
      std::make_shared<TcpHub>(resolve_interface(""), secret, /*rank=*/1, /*world_size=*/2);

  [[nodiscard]] TcpAddress peer() const {
    TcpAddress address;
    address.magic = TcpAddress::kMagic;
    hub->endpoint().fill(address);
    address.num_sockets = kSockets;
    return address;
  }
  [[nodiscard]] Fd dial() const {
    Fd fd(::socket(hub->endpoint().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd || ::connect(fd.get(), hub->endpoint().address(), hub->endpoint().size()) != 0) {
      throw LinkError("the harness cannot reach its own listener");
    }
    const linger at_once{.l_onoff = 1, .l_linger = 0};  // leaves no port in TIME_WAIT behind
    ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    return fd;
  }
  [[nodiscard]] TcpHello hello(int socket) const {
    TcpHello hello;
    hello.rank = 0;
    hello.peer = 1;
    hello.socket = static_cast<std::uint32_t>(socket);
    hello.proof = hello_proof(secret, hub->nonce(), hello);
    return hello;
  }
};

void say(const Fd& fd, const void* bytes, std::size_t size) {
  (void)::send(fd.get(), bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/// Frames of a peer that proved the secret; a piece's sender is the socket.
std::string tcp_frames(const std::string& input) {
  const TcpEnd end;
  TcpLink link(end.hub, TcpEnd::kConfig, TcpEnd::kSockets, /*same_kernel=*/true, end.peer());
  std::array<Fd, TcpEnd::kSockets> sockets;
  for (int i = 0; i < TcpEnd::kSockets; ++i) {
    sockets[static_cast<std::size_t>(i)] = end.dial();
    const TcpHello hello = end.hello(i);
    say(sockets[static_cast<std::size_t>(i)], &hello, sizeof hello);
  }
  std::vector<std::byte> posted(64);
  try {
    for (int turn = 0; turn < 4; ++turn) (void)link.progress();
    link.posted_receives()->expect(0, 0, {.memory = posted, .offset = 0, .tag = 9});
    for_each_piece(input, [&](unsigned who, std::string_view content) {
      say(sockets[who % TcpEnd::kSockets], content.data(), content.size());
      (void)link.progress();
    });
    for (int turn = 0; turn < 16; ++turn) (void)link.progress();
    for (ChannelId channel = 0; channel < TcpEnd::kConfig.num_channels; ++channel) {
      const std::uint64_t arrivals = link.arrivals(channel);
      if (arrivals > 0) (void)link.tag(channel, arrivals - 1);
      (void)link.piggybacked_credits()->heard(channel);
    }
  } catch (const LinkError&) {
  }
  return "";
}

std::string tcp_frame(std::uint16_t channel, std::uint32_t sequence, std::string_view payload,
                      std::uint32_t tag = 9) {
  TcpFrame frame;
  frame.channel = channel;
  frame.sequence = sequence;
  frame.tag = tag;
  frame.length = payload.size();
  std::string text(sizeof frame, '\0');
  std::memcpy(text.data(), &frame, sizeof frame);
  return text + std::string(payload);
}

std::vector<std::string> tcp_frame_samples() {
  const std::string in_place(64, 'x');
  TcpFrame goodbye;
  goodbye.magic = TcpFrame::kGoodbye;
  std::string leave(sizeof goodbye, '\0');
  std::memcpy(leave.data(), &goodbye, sizeof goodbye);
  TcpFrame filler;
  filler.magic = TcpFrame::kFiller;
  filler.length = 40;
  std::string fill(sizeof filler + 40, '\0');
  std::memcpy(fill.data(), &filler, sizeof filler);
  return {piece(0, tcp_frame(0, 0, in_place) + tcp_frame(0, 1, "abc")) + piece(1, leave),
          piece(1, fill + tcp_frame(1, 0, std::string(5000, 'y'))) +
              piece(0, tcp_frame(1, 1, "") + tcp_frame(1, 2, "z"))};
}

/// What an unauthenticated peer says to the listener.
std::string tcp_greeting(const std::string& input) {
  static const TcpEnd kEnd;
  const Fd fd = kEnd.dial();
  say(fd, input.data(), input.size());
  kEnd.hub->progress();
  kEnd.hub->progress();
  // The secret and the nonce are not in the input, so that nobody gets in.
  return kEnd.hub->take(0, 0) || kEnd.hub->take(0, 1) ? "an unauthenticated peer was let in" : "";
}

std::vector<std::string> greeting_samples() {
  TcpHello hello;
  hello.peer = 1;
  std::string text(sizeof hello, '\0');
  std::memcpy(text.data(), &hello, sizeof hello);
  return {text};
}

}  // namespace

std::vector<Reader> wire_readers() {
  return {{"control_coordinator", Grammar::bytes, control_coordinator, coordinator_samples},
          {"control_rank", Grammar::bytes, control_rank, rank_samples},
          {"control_stream", Grammar::bytes, control_stream, stream_samples},
          {"published_addresses", Grammar::bytes, addresses, address_samples},
          {"tcp_frames", Grammar::bytes, tcp_frames, tcp_frame_samples},
          {"tcp_greeting", Grammar::bytes, tcp_greeting, greeting_samples}};
}

}  // namespace chorus::fuzz
