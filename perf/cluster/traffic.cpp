#include "perf/cluster/traffic.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "perf/cluster/cluster.hpp"
#include "perf/cluster/stream.hpp"

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPiece = 32 << 10;
constexpr std::chrono::milliseconds kCatchUp{20};

/// A cursor over the words of a stream.
struct StreamReader {
  const std::string& text;
  std::size_t at = 0;

  [[noreturn]] void fail(const char* wanted) const {
    throw InputError(fmt::format("--traffic \"{}\", column {}: expected {}, as in host0>host2:0.02",
                                 text, at + 1, wanted));
  }
  bool skip(std::string_view word) {
    if (std::string_view(text).substr(at, word.size()) != word) return false;
    at += word.size();
    return true;
  }
  int number(const char* wanted) {
    int value = 0;
    const char* const begin = text.data() + at;
    const auto [end, error] = std::from_chars(begin, text.data() + text.size(), value);
    if (error != std::errc() || value < 0) fail(wanted);
    at += static_cast<std::size_t>(end - begin);
    return value;
  }
  int host() {
    if (!skip("host")) fail("host and its number");
    return number("the number of a host");
  }
  double gb_s() {
    char* end = nullptr;
    const char* const begin = text.c_str() + at;
    const double value = std::strtod(begin, &end);
    if (end == begin || *end != '\0' || !(value > 0) || value > 1000) fail("GB/s above 0");
    return value;
  }
};

/// Sends at the rate, and after a pause that others forced on it a little faster.
[[noreturn]] void send_on(int socket, double bytes_per_s) {
  static char piece[kPiece];
  const auto interval = std::chrono::duration_cast<Clock::duration>(
      std::chrono::duration<double>(static_cast<double>(kPiece) / bytes_per_s));
  Clock::time_point due = Clock::now();
  while (::send(socket, piece, kPiece, MSG_NOSIGNAL) > 0) {
    due = std::max(due, Clock::now() - kCatchUp) + interval;
    std::this_thread::sleep_until(due);
  }
  ::_exit(0);
}

[[noreturn]] void receive_on(int socket) {
  static char piece[1 << 18];
  while (::recv(socket, piece, sizeof piece, MSG_TRUNC) > 0) {
  }
  ::_exit(0);
}

/// Forks; the child has nothing open but `socket`, as descriptor 0.
pid_t fork_with(const Fd& socket) {
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(fmt::format("fork: {}", std::strerror(errno)));
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  ::setsid();  // a signal to the parent's group must not reach it before the parent decides
  ::prctl(PR_SET_NAME, "chorus-perf-net");
  ::dup2(socket.get(), 0);
  ::close_range(1, ~0U, 0);
  const timeval patient{0, 0};
  ::setsockopt(0, SOL_SOCKET, SO_RCVTIMEO, &patient, sizeof patient);
  ::setsockopt(0, SOL_SOCKET, SO_SNDTIMEO, &patient, sizeof patient);
  return 0;
}

void require(const Fabric& fabric, const Stream& stream) {
  const int hosts = static_cast<int>(fabric.hosts.size());
  for (const int host : {stream.from, stream.to}) {
    if (host >= hosts) {
      throw InputError(
          fmt::format("--traffic: there is no host{}: the cluster has {}", host, hosts));
    }
    if (stream.network >= fabric.num_networks || !fabric.has_cable(host, stream.network)) {
      throw InputError(
          fmt::format("--traffic: host{} has no {}", host, host_interface(stream.network)));
    }
  }
  if (stream.from == stream.to) {
    throw InputError(fmt::format("--traffic: from host{} to itself crosses no cable", stream.to));
  }
}

}  // namespace

Stream stream_named(const std::string& text) {
  StreamReader reader{text};
  Stream stream;
  stream.from = reader.host();
  if (!reader.skip(">")) reader.fail("'>' and the host that receives");
  stream.to = reader.host();
  if (reader.skip("/net")) stream.network = reader.number("the number of a network");
  if (!reader.skip(":")) reader.fail("':' and GB/s");
  stream.bytes_per_s = 1e9 * reader.gb_s();
  return stream;
}

Traffic::Traffic(const Cluster& cluster, const std::vector<Stream>& streams) {
  for (const Stream& stream : streams) require(cluster.fabric(), stream);
  try {
    for (const Stream& stream : streams) {
      const auto [sender, receiver] =
          connect_hosts(cluster, stream.from, stream.to, stream.network);
      const pid_t sending = fork_with(sender);
      if (sending == 0) send_on(0, stream.bytes_per_s);
      pids_.push_back(sending);
      const pid_t receiving = fork_with(receiver);
      if (receiving == 0) receive_on(0);
      pids_.push_back(receiving);
    }
  } catch (...) {
    end();
    throw;
  }
}

Traffic::Traffic(Traffic&& other) noexcept : pids_(std::exchange(other.pids_, {})) {}

Traffic& Traffic::operator=(Traffic&& other) noexcept {
  if (this != &other) {
    end();
    pids_ = std::exchange(other.pids_, {});
  }
  return *this;
}

Traffic::~Traffic() { end(); }

void Traffic::end() noexcept {
  for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
  for (const pid_t pid : pids_) {
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  pids_.clear();
}

}  // namespace chorus::perf
