#include "runtime/launch/pmi.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "chorus/error.hpp"
#include "runtime/control/meet.hpp"
#include "runtime/control/net.hpp"
#include "runtime/options/options_env.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxLine = 4096;

/// One request, one answer, each a line "cmd=word key=value key=value".
class Pmi {
 public:
  /// Over the descriptor that the launcher left open, or to the port where it listens.
  explicit Pmi(int timeout_ms) {
    set_deadline(timeout_ms);
    if (const auto fd = env_integer("PMI_FD", 0, 1 << 20)) {
      fd_ = static_cast<int>(*fd);
    } else {
      connect();
    }
    ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
    kvs_ = field(ask("cmd=get_my_kvsname", "my_kvsname"), "kvsname");
  }
  ~Pmi() {
    // Hydra takes a process that ends without this for a crash. A forked child is not it.
    if (owner_generation_ != net::fork_generation()) return;
    set_deadline(1'000);
    try {
      ask("cmd=finalize", "finalize_ack");
    } catch (const BootstrapError&) {
      // The launcher is gone; so will be this process.
    }
  }
  Pmi(const Pmi&) = delete;
  Pmi& operator=(const Pmi&) = delete;

  void set_deadline(int timeout_ms) { deadline_ = Clock::now() + milliseconds(timeout_ms); }
  void put(const std::string& key, const std::string& value) {
    ask(fmt::format("cmd=put kvsname={} key={} value={}", kvs_, key, value), "put_result");
  }
  void barrier() { ask("cmd=barrier_in", "barrier_out"); }
  /// As the launcher says over a port; nothing over a descriptor, where variables say it.
  [[nodiscard]] const std::optional<PmiPlace>& place() const { return place_; }
  std::string get(const std::string& key) {
    return field(ask(fmt::format("cmd=get kvsname={} key={}", kvs_, key), "get_result"), "value");
  }

 private:
  [[noreturn]] static void fail(std::string_view what) {
    const char* name = env("PMI_FD") ? "PMI_FD" : "PMI_PORT";
    throw BootstrapError(fmt::format("PMI ({}={}): {}", name, env(name).value_or(""), what));
  }

  /// "PMI_PORT=host:port", where this process is known by PMI_ID. The launcher's first answer is
  /// followed by one line each for the number of ranks, this one's, and a level of messages.
  void connect() {
    const std::string place = env("PMI_PORT").value_or("");
    const std::string id = env("PMI_ID").value_or("");
    const std::size_t colon = place.rfind(':');
    std::uint16_t port = 0;
    const char* const end = place.data() + place.size();
    if (colon == std::string::npos || id.empty() ||
        std::from_chars(place.data() + colon + 1, end, port).ptr != end || port == 0) {
      fail(fmt::format("needs host:port, and PMI_ID (now '{}')", id));
    }
    int error = 0;
    socket_ = net::connect_to(net::resolve(place.substr(0, colon), port), deadline_, error);
    if (error != 0) fail(fmt::format("the launcher cannot be reached: {}", std::strerror(error)));
    fd_ = socket_.get();
    const std::string request = fmt::format("cmd=initack pmiid={}", id);
    ask(request, "initack");
    PmiPlace place_there{.rank = -1, .world_size = 0};
    for (int line = 0; line < 3; ++line) {
      const std::string said = read_line(request);
      if (const auto size = field(said, "size"); !size.empty()) {
        place_there.world_size = std::atoi(size.c_str());
      } else if (const auto rank = field(said, "rank"); !rank.empty()) {
        place_there.rank = std::atoi(rank.c_str());
      }
    }
    if (place_there.rank < 0 || place_there.world_size <= place_there.rank) {
      fail("the launcher does not say which of how many ranks this is");
    }
    place_ = place_there;
  }

  static std::string field(std::string_view line, std::string_view name) {
    const std::string wanted = fmt::format("{}=", name);
    for (std::size_t begin = 0; begin < line.size();) {
      const std::size_t end = std::min(line.find(' ', begin), line.size());
      const std::string_view word = line.substr(begin, end - begin);
      if (word.starts_with(wanted)) return std::string(word.substr(wanted.size()));
      begin = end + 1;
    }
    return {};
  }

  std::string ask(const std::string& request, std::string_view answer) {
    const std::string line = request + "\n";
    for (std::size_t sent = 0; sent < line.size();) {
      const ssize_t now = ::write(fd_, line.data() + sent, line.size() - sent);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0) fail(fmt::format("the launcher is gone: {}", std::strerror(errno)));
      sent += static_cast<std::size_t>(now);
    }
    std::string reply = read_line(request);
    if (field(reply, "cmd") != answer) {
      fail(fmt::format("'{}' was answered by '{}'", request, reply));
    }
    const std::string rc = field(reply, "rc");
    if (!rc.empty() && rc != "0") fail(fmt::format("'{}' failed: '{}'", request, reply));
    return reply;
  }

  std::string read_line(const std::string& request) {
    for (;;) {
      if (const auto end = pending_.find('\n'); end != std::string::npos) {
        std::string line = pending_.substr(0, end);
        pending_.erase(0, end + 1);
        return line;
      }
      if (pending_.size() > kMaxLine) fail("the launcher sent a line without end");
      const auto left = std::chrono::duration_cast<milliseconds>(deadline_ - Clock::now()).count();
      pollfd entry{fd_, POLLIN, 0};
      if (left <= 0 || ::poll(&entry, 1, static_cast<int>(left)) == 0) {
        fail(request == "cmd=barrier_in"
                 ? "not all ranks have called join() before the deadline (CHORUS_JOIN_TIMEOUT_MS)"
                 : fmt::format("no answer to '{}'", request));
      }
      std::array<char, 1024> buffer;
      const ssize_t got = ::read(fd_, buffer.data(), buffer.size());
      if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (got <= 0) fail("the launcher closed the connection");
      pending_.append(buffer.data(), static_cast<std::size_t>(got));
    }
  }

  int fd_ = -1;
  net::Socket socket_;  ///< of a port
  std::optional<PmiPlace> place_;
  int owner_generation_ = net::fork_generation();
  std::string kvs_, pending_;
  Clock::time_point deadline_;
};

struct PmiConnection {
  std::mutex mutex;
  std::unique_ptr<Pmi> pmi;  // ends with the process: PMI cannot be initialised twice
  int joinings = 0;
};

/// With its mutex held.
Pmi& connected(PmiConnection& connection, int timeout_ms) {
  if (!connection.pmi) {
    if (!env("PMI_FD") && !env("PMI_PORT")) {
      throw BootstrapError("neither PMI_FD nor PMI_PORT is set: no PMI launcher to ask");
    }
    connection.pmi = std::make_unique<Pmi>(timeout_ms);
  }
  connection.pmi->set_deadline(timeout_ms);
  return *connection.pmi;
}

PmiConnection& pmi_connection() {
  static PmiConnection connection;
  return connection;
}

}  // namespace

PmiPlace place_by_pmi(int timeout_ms) {
  PmiConnection& connection = pmi_connection();
  const std::lock_guard lock(connection.mutex);
  const auto& place = connected(connection, timeout_ms).place();
  if (!place) throw BootstrapError("PMI_FD: PMI_RANK and PMI_SIZE say which rank this is");
  return *place;
}

std::string publish_by_pmi(int rank, const std::string& value, int timeout_ms) {
  PmiConnection& connection = pmi_connection();
  const std::lock_guard lock(connection.mutex);
  Pmi& pmi = connected(connection, timeout_ms);
  // Keys cannot be written twice.
  const std::string key = fmt::format("chorus-id-{}", connection.joinings++);
  if (rank == 0) pmi.put(key, value);
  pmi.barrier();
  return pmi.get(key);
}

}  // namespace chorus
