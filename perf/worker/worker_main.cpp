// main() of every worker: joins its job, then measures what the driver asks for.
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "perf/wire.hpp"
#include "perf/worker/backend.hpp"
#include "perf/worker/loop.hpp"

namespace chorus::perf {

int environment_number(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) throw std::runtime_error(fmt::format("{} is not set", name));
  return std::atoi(text);
}

namespace {

/// "tcp:10.0.0.1:4000"; who comes this way shows the driver's token first.
Fd connect_over_network(const std::string& control) {
  const std::size_t colon = control.rfind(':');
  const std::string host = control.substr(4, colon - 4);
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), control.substr(colon + 1).c_str(), &hints, &found) != 0) {
    throw InputError(control + " is not an address of a driver");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> address(found, ::freeaddrinfo);
  Fd socket(::socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0) {
    throw Error(fmt::format("cannot reach the driver at {}: {}", control, std::strerror(errno)));
  }
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const char* const token = std::getenv(kTokenVariable);
  send_frame(socket.get(), token == nullptr ? "" : token);
  return socket;
}

/// The address by which the driver knows this host.
std::string local_address(int socket) {
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  char text[NI_MAXHOST] = "";
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&own), &length) != 0) return {};
  if (::getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return {};
  }
  return text;
}

bool is_across_hosts(const WorkerArguments& arguments) {
  return arguments.control.starts_with("tcp:");
}

Fd connect_to(const std::string& path) {
  if (path.starts_with("tcp:")) return connect_over_network(path);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw InputError(path + ": too long for a socket");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket ||
      ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw Error(fmt::format("cannot reach the driver at {}: {}", path, std::strerror(errno)));
  }
  return socket;
}

/// Ends this process at once when the driver is gone, even if it hangs in a collective. The thread
/// sleeps in poll() meanwhile and costs a measurement nothing.
void leave_with_driver(int socket) {
  std::thread([socket] {
    pollfd watched{.fd = socket, .events = POLLRDHUP, .revents = 0};
    while (::poll(&watched, 1, -1) <= 0 || (watched.revents & (POLLRDHUP | POLLHUP)) == 0) {
    }
    ::_exit(3);
  }).detach();
}

WorkerArguments parse(int argc, char** argv) {
  WorkerArguments arguments;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view key = argv[i];
    if (key == "--control") arguments.control = argv[i + 1];
    if (key == "--line") arguments.line = argv[i + 1];
    if (key == "--directory") arguments.directory = argv[i + 1];
    if (key == "--buffers") arguments.library_buffers = argv[i + 1] == std::string_view("library");
    if (key == "--memory") arguments.on_gpu = argv[i + 1] == std::string_view("gpu");
    if (key == "--nccl") arguments.nccl = argv[i + 1];
  }
  if (arguments.control.empty() || (arguments.line.empty() && !is_across_hosts(arguments))) {
    throw InputError("this program is started by chorus-perf; run that");
  }
  return arguments;
}

std::string receive_answer(int socket) {
  auto frame = receive_frame(socket);
  if (!frame) throw Error("the driver is gone");
  return std::move(*frame);
}

class MeetingInDriver final : public Meeting {
 public:
  explicit MeetingInDriver(int socket) : socket_(socket) {}
  void set(const std::string& key, const std::string& value) override {
    send_frame(socket_, to_json(Reply{.set = std::pair(key, value)}));
  }
  std::string get(const std::string& key) override {
    send_frame(socket_, to_json(Reply{.get = key}));
    return receive_answer(socket_);
  }

 private:
  int socket_;
};

std::unique_ptr<StartLine> start_line(int socket, const WorkerArguments& arguments, int rank,
                                      int world_size) {
  if (!is_across_hosts(arguments)) {
    return std::make_unique<StartLine>(arguments.line, rank, world_size);
  }
  const Welcome welcome = welcome_from_json(receive_answer(socket));
  const auto agree = [socket, rank](std::uint64_t mine, bool pair) {
    if (rank == 0) send_frame(socket, to_json(Reply{.agree = Agreement{mine, pair}}));
    return static_cast<std::uint64_t>(std::stoull(receive_answer(socket)));
  };
  return std::make_unique<StartLine>(welcome.line, rank, welcome.parties, welcome.pair, agree);
}

void serve(int socket, WorkerArguments arguments) {
  MeetingInDriver meeting(socket);
  arguments.meeting = &meeting;
  if (is_across_hosts(arguments)) arguments.address = local_address(socket);
  const std::unique_ptr<Backend> backend = make_backend(arguments);
  send_frame(socket, to_json(Reply{.hello = Hello{.rank = backend->rank(),
                                                  .world_size = backend->world_size(),
                                                  .version = backend->version(),
                                                  .host = host_key(),
                                                  .pid = ::getpid()}}));
  const auto line = start_line(socket, arguments, backend->rank(), backend->world_size());
  // An empty frame asks to leave in order.
  for (auto frame = receive_frame(socket); frame && !frame->empty();
       frame = receive_frame(socket)) {
    send_frame(socket, to_json(Reply{.sample = measure(*backend, *line, job_from_json(*frame))}));
  }
}

int run(int argc, char** argv) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Fd socket;
  try {
    const WorkerArguments arguments = parse(argc, argv);
    socket = connect_to(arguments.control);
    leave_with_driver(socket.get());
    serve(socket.get(), arguments);
    return 0;
  } catch (const std::exception& error) {
    if (!socket) {
      fmt::print(stderr, "chorus-perf worker: {}\n", error.what());
      return 2;
    }
    try {
      send_frame(socket.get(), to_json(Reply{.error = error.what()}));
    } catch (const Error&) {
      // The driver is gone; there is nobody left to tell.
    }
    return 1;
  }
}

}  // namespace
}  // namespace chorus::perf

int main(int argc, char** argv) {
  const int status = chorus::perf::run(argc, argv);
  // Not exit(): destructors of the libraries must not touch what a failed job has left behind.
  std::fflush(nullptr);
  ::_exit(status);
}
