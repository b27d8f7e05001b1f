// Two ranks joined by one link, as threads of one process or as two processes.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "transports/transports.hpp"

namespace chorus::testing {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// How the two ends are joined in one run of the suite.
struct Way {
  std::string transport;
  std::string interface_name;  ///< TransportContext's
  bool processes = false;
  std::string name;
  std::array<std::string, 2> hca = {};  ///< RdmaSettings', by rank
  bool by_kernel = false;               ///< puts of all sizes, by Link::expect_copies()
  int tcp_sockets = 2;
};
inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

inline std::vector<std::byte> pattern(std::size_t size, std::uint64_t seed) {
  std::vector<std::byte> bytes(size);
  std::uint64_t state = seed * 0x9e3779b97f4a7c15 + 1;
  for (std::byte& byte : bytes) {
    state = state * 6364136223846793005 + 1442695040888963407;
    byte = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

/// What one rank has in hand, with blocking helpers that no test may wait in for ever.
struct End {
  Rank rank;
  Transport& transport;
  Link& link;
  int side_channel = -1;  ///< a socket to the other rank, for what the test itself must agree on

  /// Calls `done` until it is true, giving way to the other rank, which may share our core.
  void until(const std::function<bool()>& done, std::string_view what) const {
    const auto deadline = Clock::now() + 60s;
    for (int i = 1; !done(); ++i) {
      if (i % 64 == 0) ::sched_yield();
      if (i % 1024 == 0 && Clock::now() > deadline) {
        throw std::runtime_error(fmt::format("rank {}: timed out: {}", rank, what));
      }
    }
  }
  void advance() const {
    transport.progress();
    static_cast<void>(link.progress());
  }
  void put(std::span<const std::byte> src, std::size_t offset, ChannelId channel,
           std::uint32_t tag) const {
    until(
        [&] {
          if (link.try_put(src, offset, channel, tag)) return true;
          advance();
          return false;
        },
        "no room for a put");
  }
  /// The link keeps reading src.
  void put(std::vector<std::byte>&&, std::size_t, ChannelId, std::uint32_t) const = delete;
  void signal(ChannelId channel, std::uint32_t tag) const {
    put(std::span<const std::byte>(), 0, channel, tag);
  }
  void await(ChannelId channel, std::uint64_t count) const {
    until(
        [&] {
          if (link.arrivals(channel) >= count) return true;
          advance();
          return false;
        },
        fmt::format("waiting for arrival {} of channel {}", count, channel));
  }
  /// Every src is ours again.
  void flush() const {
    until([&] { return link.progress(); }, "waiting for released puts");
  }
  /// Waits for the other rank to call it too.
  void meet() const {
    char byte = 0;
    ASSERT_EQ(::send(side_channel, "m", 1, MSG_NOSIGNAL), 1);
    until(
        [&] {
          advance();
          return ::recv(side_channel, &byte, 1, MSG_DONTWAIT) == 1;
        },
        "waiting for the other rank of the test");
  }
  bool matches(std::size_t offset, std::span<const std::byte> expected) const {
    const auto there = link.region().subspan(offset, expected.size());
    return std::equal(there.begin(), there.end(), expected.begin());
  }
};

inline std::unique_ptr<Transport> make_transport(const std::string& name,
                                                 const TransportContext& context) {
  for (const TransportFactory& factory : transports()) {
    if (factory.name == name) return factory.make(context);
  }
  throw std::runtime_error("no transport " + name);
}

inline bool have_ipv6_loopback() {
  const Fd socket(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return socket &&
         ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

/// Over every kind of address that this machine has.
inline std::vector<Way> tcp_ways(bool processes) {
  const std::string suffix = processes ? "_processes" : "_threads";
  std::vector<Way> ways = {{"tcp", "127.0.0.1", processes, "tcp4" + suffix}};
  // Two addresses of loopback stand for two cables.
  ways.push_back({"tcp", "127.0.0.1,127.0.0.2", processes, "tcp_rails" + suffix});
  if (have_ipv6_loopback()) ways.push_back({"tcp", "::1", processes, "tcp6" + suffix});
  return ways;
}

/// Memory of the other rank that the kernel copies.
inline Way kernel_way(bool processes) {
  return {.transport = "shm",
          .interface_name = {},
          .processes = processes,
          .name = processes ? "shm_by_kernel_processes" : "shm_by_kernel_threads",
          .by_kernel = true};
}

inline TransportContext context_for(const Way& way, const LinkConfig& config, Rank rank) {
  TransportContext context;
  context.rank = rank;
  context.world_size = 2;
  context.secret = Secret::parse("00112233445566778899aabbccddeeff");
  context.link = config;
  context.interface_name = way.interface_name;
  context.tcp_sockets = way.tcp_sockets;
  context.rdma.hca = way.hca[static_cast<std::size_t>(rank)];
  return context;
}

/// Sends `mine` to the other rank and returns what it sent.
inline std::vector<std::byte> swap_blobs(int socket, std::span<const std::byte> mine) {
  EXPECT_EQ(::send(socket, mine.data(), mine.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(mine.size()));
  std::vector<std::byte> theirs(1024);
  const ssize_t got = ::recv(socket, theirs.data(), theirs.size(), 0);
  theirs.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return theirs;
}

using Role = std::function<void(End&)>;
/// Puts something around a rank's link, a FaultyLink for instance.
using Wrap = std::function<std::unique_ptr<Link>(Rank, std::unique_ptr<Link>)>;

/// Everything one rank does, from making its transport to the end of `role`.
inline void play(const Way& way, const LinkConfig& config, Rank rank, int socket, const Role& role,
                 const Wrap& wrap) {
  try {
    const auto transport = make_transport(way.transport, context_for(way, config, rank));
    const auto address = swap_blobs(socket, transport->address());
    auto link = transport->connect(1 - rank, address);
    if (way.by_kernel) {
      constexpr MessageCopies kCheap{.stage_s = 1e-9, .fetch_s = 1e-9, .kernel_s = 1.5e-9};
      link->expect_copies({.of = std::vector<MessageCopies>(32, kCheap)});
    }
    if (wrap) link = wrap(rank, std::move(link));
    End end{rank, *transport, *link, socket};
    role(end);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

/// Runs `rank0` here and `rank1` in a thread or process. Returns rank 1's wait status (0 for a
/// thread).
inline int run_ends(const Way& way, const LinkConfig& config, const Role& rank0, const Role& rank1,
                    const Wrap& wrap = {}) {
  int sockets[2];
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), 0);
  Fd side0(sockets[0]);
  Fd side1(sockets[1]);
  if (!way.processes) {
    std::jthread other([&] { play(way, config, 1, side1.get(), rank1, wrap); });
    play(way, config, 0, side0.get(), rank0, wrap);
    return 0;
  }
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    side0.reset();
    play(way, config, 1, side1.get(), rank1, wrap);
    std::fflush(nullptr);
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  side1.reset();
  play(way, config, 0, side0.get(), rank0, wrap);
  side0.reset();
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

/// Both ranks play `role`, and both must end well.
inline void run_both(const Way& way, const LinkConfig& config, const Role& role,
                     const Wrap& wrap = {}) {
  EXPECT_EQ(run_ends(way, config, role, role, wrap), 0) << "rank 1 failed";
}

}  // namespace chorus::testing
