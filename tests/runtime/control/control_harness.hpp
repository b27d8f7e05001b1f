// Ranks as threads, and raw connections for those who do not keep to the protocol.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "runtime/control/control.hpp"
#include "runtime/control/net.hpp"
#include "runtime/control/wire.hpp"

namespace chorus::testing_control {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kPatience_ms = 20'000;

inline std::vector<Rank> all_ranks(int world_size) {
  std::vector<Rank> ranks(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) ranks[static_cast<std::size_t>(rank)] = rank;
  return ranks;
}
inline std::vector<Rank> all_ranks_but(Rank absent, int world_size) {
  std::vector<Rank> ranks = all_ranks(world_size);
  std::erase(ranks, absent);
  return ranks;
}

inline std::vector<std::byte> bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

inline std::string all_of(const Table& table) {
  std::string text;
  for (const auto blob : table) text += text_of(blob);
  return text;
}

inline std::string letter(Rank rank) { return std::string(1, static_cast<char>('a' + rank)); }

/// Between processes.
struct Pipe {
  Fd read, write;
  Pipe() {
    int ends[2];
    if (::pipe(ends) != 0) throw std::runtime_error("pipe");
    read = Fd(ends[0]);
    write = Fd(ends[1]);
  }
  void say(std::string_view text) const {
    [[maybe_unused]] const auto written = ::write(write.get(), text.data(), text.size());
  }
  /// What is there now, or, if nothing is, what comes next; nothing once all writers are gone.
  [[nodiscard]] std::string hear() const {
    std::string text(4096, '\0');
    const ssize_t size = ::read(read.get(), text.data(), text.size());
    text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
    return text;
  }
};

/// Runs body(rank) in one thread per rank; what each threw, or "".
inline std::vector<std::string> run_ranks(int world_size, const std::function<void(Rank)>& body) {
  std::vector<std::string> thrown(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (Rank rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        thrown[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return thrown;
}

/// All ranks of a world, joined from threads, in this process.
inline std::vector<std::shared_ptr<Control>> join_all(const std::string& id, int world_size) {
  std::vector<std::shared_ptr<Control>> controls(static_cast<std::size_t>(world_size));
  for (const std::string& error : run_ranks(world_size, [&](Rank rank) {
         controls[static_cast<std::size_t>(rank)] =
             Control::join(id, rank, world_size, kPatience_ms);
       })) {
    EXPECT_EQ(error, "");
  }
  return controls;
}

/// Leaves with all at once, as processes would.
inline void leave_all(std::vector<std::shared_ptr<Control>>& controls) {
  run_ranks(static_cast<int>(controls.size()),
            [&](Rank rank) { controls[static_cast<std::size_t>(rank)].reset(); });
}

/// Why joining is refused.
inline std::string join_error(const std::string& id, Rank rank, int world_size, int timeout_ms) {
  try {
    (void)Control::join(id, rank, world_size, timeout_ms);
  } catch (const Error& error) {
    return error.what();
  }
  return "joined";
}

inline std::string verdict_within(Control& control, const std::string& group, int ms) {
  return control.await_verdict(group, ms).value_or("no verdict");
}

/// A connection that says what the test wants it to say.
class Raw {
 public:
  explicit Raw(const std::string& id) : id_(net::Id::parse(id)) {
    fd_ = Fd(::socket(id_.endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    connected_ = ::connect(fd_.get(), id_.endpoint.address(), id_.endpoint.size()) == 0;
  }
  [[nodiscard]] bool connected() const { return connected_; }
  bool send(std::span<const std::byte> bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  bool send(const wire::Frame& frame) { return send(*frame); }

  /// The next frame, or nothing if the connection ended or was silent for `ms`.
  std::optional<std::pair<wire::Type, wire::Bytes>> next(int ms = kPatience_ms) {
    for (;;) {
      if (const auto item = inbox_.next()) {
        return std::pair(item->type, wire::Bytes(item->body.begin(), item->body.end()));
      }
      pollfd entry{fd_.get(), POLLIN, 0};
      if (::poll(&entry, 1, ms) <= 0) return std::nullopt;
      std::byte buffer[4096];
      const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, 0);
      if (got <= 0) {
        ended_ = true;
        return std::nullopt;
      }
      inbox_.add(std::span(buffer).first(static_cast<std::size_t>(got)));
    }
  }
  [[nodiscard]] bool ended() const { return ended_; }

  /// A hello that proves the secret; `change` makes it different.
  wire::Hello hello(Rank rank, int world_size) const {
    wire::Hello hello;
    hello.version = wire::version();
    hello.nonce = wire::random_nonce();
    hello.rank = rank;
    hello.world_size = world_size;
    hello.pid = 4242;
    hello.host = "elsewhere";
    hello.identity = "another process";
    return hello;
  }
  /// Reads the greeting, says hello and gives the answer: its type and first text.
  std::pair<wire::Type, std::string> enter(const wire::Hello& hello) {
    const auto greeting = next();
    if (!greeting) return {};
    send(wire::hello_frame(hello, wire::read_greeting(greeting->second).nonce, id_.secret));
    const auto answer = next();
    if (!answer) return {};
    wire::Reader reader(answer->second);
    return {answer->first,
            answer->first == wire::Type::refused ? reader.text() : std::string("welcome")};
  }
  /// Becomes that rank, and waits until all have joined.
  void join(Rank rank, int world_size) {
    EXPECT_EQ(enter(hello(rank, world_size)).second, "welcome");
    EXPECT_TRUE(next());
  }
  void close() { fd_.reset(); }

 private:
  net::Id id_;
  Fd fd_;
  wire::Inbox inbox_{64u << 20};
  bool connected_ = false, ended_ = false;
};

}  // namespace chorus::testing_control
