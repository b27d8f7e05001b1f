// main() of every worker: joins its job, then measures what the driver asks for.
#include <fmt/format.h>
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
#include <thread>

#include "base/fd.hpp"
#include "chorus/error.hpp"
#include "perf/backend.hpp"
#include "perf/loop.hpp"
#include "perf/wire.hpp"

namespace chorus::perf {

int environment_number(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) throw std::runtime_error(fmt::format("{} is not set", name));
  return std::atoi(text);
}

namespace {

Fd connect_to(const std::string& path) {
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
  if (arguments.control.empty() || arguments.line.empty() || arguments.directory.empty()) {
    throw InputError("this program is started by chorus-perf; run that");
  }
  return arguments;
}

void serve(int socket, const WorkerArguments& arguments) {
  const std::unique_ptr<Backend> backend = make_backend(arguments);
  StartLine line(arguments.line, backend->rank(), backend->world_size());
  send_frame(socket, to_json(Reply{.hello = Hello{.rank = backend->rank(),
                                                  .world_size = backend->world_size(),
                                                  .version = backend->version()}}));
  // An empty frame asks to leave in order.
  for (auto frame = receive_frame(socket); frame && !frame->empty();
       frame = receive_frame(socket)) {
    send_frame(socket, to_json(Reply{.sample = measure(*backend, line, job_from_json(*frame))}));
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
