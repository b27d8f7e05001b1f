#include "perf/cluster/stream.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>

namespace chorus::perf {
namespace {

using Clock = std::chrono::steady_clock;

/// A socket that lives on `host`, wherever this process is.
Fd socket_on(const Cluster& cluster, int host) {
  const Fd own(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  const Fd keeper(static_cast<int>(::syscall(SYS_pidfd_open, cluster.keeper(host), 0)));
  // The network of this thread alone, and back again.
  if (!own || !keeper || ::setns(keeper.get(), CLONE_NEWNET) != 0) {
    throw Error(fmt::format("host{} cannot be entered: {}", host, std::strerror(errno)));
  }
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int error = errno;
  if (::setns(own.get(), CLONE_NEWNET) != 0) {
    throw Error(fmt::format("cannot leave host{}: {}", host, std::strerror(errno)));
  }
  if (!socket) throw Error(fmt::format("socket on host{}: {}", host, std::strerror(error)));
  return socket;
}

sockaddr_in address_of(const Cluster& cluster, int host, int network) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  ::inet_pton(AF_INET, cluster.fabric().address(host, network).c_str(), &address.sin_addr);
  return address;
}

[[noreturn]] void fail(const char* what) {
  throw Error(fmt::format("a stream between hosts: {}: {}", what, std::strerror(errno)));
}

}  // namespace

std::pair<Fd, Fd> connect_hosts(const Cluster& cluster, int from, int to, int network) {
  Fd listener = socket_on(cluster, to);
  sockaddr_in address = address_of(cluster, to, network);
  socklen_t size = sizeof address;
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail("listen");
  }
  Fd sender = socket_on(cluster, from);
  const timeval patience{5, 0};
  ::setsockopt(sender.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  ::setsockopt(listener.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (::connect(sender.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) fail("connect");
  Fd receiver(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!receiver) fail("accept");
  ::setsockopt(receiver.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return {std::move(sender), std::move(receiver)};
}

namespace {

double measure(const Cluster& cluster, int from, int to, int network, double seconds) {
  auto [sender, receiver] = connect_hosts(cluster, from, to, network);
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail("fork");
  static char buffer[1 << 18];
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    receiver.reset();
    while (::send(sender.get(), buffer, sizeof buffer, MSG_NOSIGNAL) > 0) {
    }
    ::_exit(0);
  }
  sender.reset();
  const auto span =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  const Clock::time_point begin = Clock::now() + span, end = begin + span;
  Clock::time_point first{}, now = Clock::now();
  double bytes = 0;
  while (now < end) {
    const ssize_t got = ::recv(receiver.get(), buffer, sizeof buffer, 0);
    now = Clock::now();
    if (got <= 0) break;
    if (now < begin) continue;
    if (first == Clock::time_point{}) {
      first = now;
    } else {
      bytes += static_cast<double>(got);
    }
  }
  receiver.reset();
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  throw_if_stopped();
  if (bytes <= 0) throw Error(fmt::format("nothing arrives from host{} at host{}", from, to));
  return bytes / std::chrono::duration<double>(now - first).count();
}

}  // namespace

std::vector<CableCheck> check_cables(const Cluster& cluster, double seconds) {
  std::vector<CableCheck> checks;
  const int hosts = static_cast<int>(cluster.fabric().hosts.size());
  for (int from = 0; from < hosts && hosts > 1; ++from) {
    const int to = (from + 1) % hosts;
    for (int network = 0; network < cluster.fabric().num_networks; ++network) {
      const double rate = cluster.fabric().rate(from, to, network);
      if (rate == 0) continue;  // one of them has no cable there
      checks.push_back({from, to, rate * payload_share(cluster.options().mtu),
                        measure(cluster, from, to, network, seconds), network});
    }
  }
  return checks;
}

double worst_deviation(const std::vector<CableCheck>& checks) {
  double worst = 0;
  for (const CableCheck& check : checks) {
    worst = std::max(worst, std::abs(check.measured_bytes_per_s / check.expected_bytes_per_s - 1));
  }
  return worst;
}

}  // namespace chorus::perf
