// Where BBR is the system's default, no connection of tcp ever begins with it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "transports/tcp/endpoint.hpp"

namespace chorus {
namespace {

// What a process found in a network of its own: its exit status.
enum Found : int { reno = 0, another = 1, no_connection = 2, no_network = 3, no_bbr = 4 };

bool bring_up(const char* interface) {
  const Fd socket(::socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  request.ifr_flags = IFF_UP;
  return ::ioctl(socket.get(), SIOCSIFFLAGS, &request) == 0;
}

bool set_default(std::string_view algorithm) {
  const Fd file(::open("/proc/sys/net/ipv4/tcp_congestion_control", O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), algorithm.data(), algorithm.size()) ==
                     static_cast<ssize_t>(algorithm.size());
}

std::string algorithm_of(const Fd& fd) {
  char name[16] = {};
  socklen_t size = sizeof name - 1;
  ::getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, &size);
  return name;
}

Found connect_where_bbr_is_the_default() {
  if (::unshare(CLONE_NEWNET) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) {
    return no_network;
  }
  if (!bring_up("lo")) return no_network;
  if (!set_default("bbr")) return no_bbr;
  const Fd listener = listen_on(resolve_interface(""));
  const Endpoint here = Endpoint::bound(listener.get());
  const Fd connecting = start_connecting(resolve_interface(""), here);
  pollfd caller{listener.get(), POLLIN, 0};
  ::poll(&caller, 1, -1);
  const Fd accepted(::accept(listener.get(), nullptr, nullptr));
  const bool is_reno = algorithm_of(connecting) == "reno" && algorithm_of(accepted) == "reno";
  return is_reno ? reno : another;
}

// What BBR has once begun the kernel paces for good, by round trips that are long over.
TEST(TcpCongestion, NoConnectionBeginsWithBbr) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      ::_exit(connect_where_bbr_is_the_default());
    } catch (...) {
      ::_exit(no_connection);
    }
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == no_network) GTEST_SKIP() << "no network of its own";
  if (WEXITSTATUS(status) == no_bbr) GTEST_SKIP() << "this kernel lacks BBR";
  EXPECT_EQ(WEXITSTATUS(status), reno);
}

}  // namespace
}  // namespace chorus
