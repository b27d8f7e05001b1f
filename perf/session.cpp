#include "perf/session.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "chorus/error.hpp"
#include "perf/start_line.hpp"

namespace chorus::perf {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

Clock::time_point after(Session::Seconds seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
}

Fd listen_at(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) throw Error(path + ": too long for a socket");
  std::memcpy(address.sun_path, path.c_str(), path.size());
  Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 1024) != 0) {
    throw Error(fmt::format("cannot listen at {}: {}", path, std::strerror(errno)));
  }
  return socket;
}

}  // namespace

Session::Session(const Launch& launch, std::string directory, int world_size, Seconds deadline)
    : directory_(std::move(directory)), world_size_(world_size) {
  std::filesystem::create_directories(directory_);
  try {
    start(launch);
    greet(after(deadline));
  } catch (...) {
    end(0ms);
    throw;
  }
}

Session::~Session() {
  for (const Peer& peer : peers_) {
    try {
      send_frame(peer.socket.get(), {});
    } catch (const Error&) {
      // It is gone already.
    }
  }
  const auto deadline = Clock::now() + 2000ms;
  const auto all_left = [&] {
    return std::all_of(children_.begin(), children_.end(), [](Child& child) {
      child.drain();
      return !child.ended().empty();
    });
  };
  while (!peers_.empty() && !all_left() && Clock::now() < deadline) {
    ::poll(nullptr, 0, 5);
  }
  end(500ms);
}

void Session::start(const Launch& launch) {
  const std::string control = directory_ + "/control";
  const std::string line = directory_ + "/line";
  StartLine::create(line);
  listener_ = listen_at(control);
  for (Command command : launch.commands) {
    for (const std::string& word : {std::string("--control"), control, std::string("--line"), line,
                                    std::string("--directory"), directory_}) {
      command.argv.push_back(word);
    }
    children_.emplace_back(command);
  }
}

void Session::accept_one() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return;
  ucred who{};
  socklen_t length = sizeof who;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &length);
  Peer peer;
  peer.socket = std::move(socket);
  peer.pid = who.pid;
  peers_.push_back(std::move(peer));
}

void Session::greet(Deadline deadline) {
  int ready = 0;
  while (ready < world_size_) {
    wait_for_input(deadline, "waiting for its ranks to start");
    accept_one();
    for (Peer& peer : peers_) {
      read_from(peer);
      const auto frame = peer.reader.next();
      if (!frame) continue;
      const Reply reply = reply_from_json(*frame);
      if (!reply.error.empty()) throw Error(reply.error);
      if (!reply.hello || reply.hello->world_size != world_size_ || reply.hello->rank < 0 ||
          reply.hello->rank >= world_size_) {
        throw Error(fmt::format("a worker says it is rank {} of {}, and {} ranks were started",
                                reply.hello ? reply.hello->rank : -1,
                                reply.hello ? reply.hello->world_size : 0, world_size_));
      }
      peer.rank = reply.hello->rank;
      version_ = reply.hello->version;
      ++ready;
    }
  }
  std::sort(peers_.begin(), peers_.end(),
            [](const Peer& a, const Peer& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].rank != static_cast<int>(i)) throw Error("two workers claim one rank");
  }
}

void Session::wait_for_input(Deadline deadline, std::string_view doing) {
  for (;;) {
    std::vector<pollfd> watched;
    watched.push_back({.fd = listener_.get(), .events = POLLIN, .revents = 0});
    for (const Peer& peer : peers_) {
      watched.push_back({.fd = peer.socket.get(), .events = POLLIN, .revents = 0});
    }
    const int found = ::poll(watched.data(), watched.size(), 50);
    throw_if_stopped();
    if (found > 0) return;
    // Only looked at when nothing came for 50 ms: the poll returns at once while a block runs well.
    check_children();
    if (Clock::now() > deadline) throw Error(fmt::format("timed out {}", doing));
  }
}

void Session::read_from(Peer& peer) {
  char buffer[65536];
  for (;;) {
    const ssize_t got = ::recv(peer.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got > 0) {
      peer.reader.append({buffer, static_cast<std::size_t>(got)});
      continue;
    }
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    throw Error(fmt::format(
        "{} died{}", peer.rank < 0 ? "a worker" : fmt::format("rank {}", peer.rank), last_words()));
  }
}

void Session::check_children() {
  for (Child& child : children_) {
    child.drain();
    if (const std::string how = child.ended(); !how.empty()) {
      throw Error(fmt::format("it {}{}", how, last_words()));
    }
  }
}

std::string Session::last_words() {
  ::poll(nullptr, 0, 50);  // what a dying worker says may still be on its way through its launcher
  for (Child& child : children_) {
    child.drain();
    const std::string& text = child.output();
    const std::size_t begin = text.find_first_not_of("-\n \t");
    if (begin == text.npos) continue;
    std::string words = text.substr(begin, 300);
    std::replace(words.begin(), words.end(), '\n', ' ');
    return ": " + words;
  }
  return {};
}

std::vector<Sample> Session::run(const Job& job, Seconds seconds) {
  const Deadline deadline = after(seconds);
  try {
    const std::string frame = to_json(job);
    for (const Peer& peer : peers_) send_frame(peer.socket.get(), frame);
    std::vector<Sample> samples(peers_.size());
    std::vector<bool> have(peers_.size(), false);
    const std::string doing = fmt::format("after {:.0f} s", seconds.count());
    while (std::find(have.begin(), have.end(), false) != have.end()) {
      wait_for_input(deadline, doing);
      for (Peer& peer : peers_) {
        read_from(peer);
        const auto text = peer.reader.next();
        if (!text) continue;
        Reply reply = reply_from_json(*text);
        if (!reply.error.empty()) throw Error(reply.error);
        const auto rank = static_cast<std::size_t>(peer.rank);
        if (!reply.sample || have[rank]) throw Error("a worker answered out of turn");
        samples[rank] = std::move(*reply.sample);
        have[rank] = true;
      }
    }
    return samples;
  } catch (...) {
    end(0ms);
    throw;
  }
}

std::vector<pid_t> Session::processes() {
  std::vector<pid_t> all;
  for (Child& child : children_) {
    if (!child.ended().empty()) continue;  // its number may be another's by now
    const std::vector<pid_t> family = family_of(child.pid());
    all.insert(all.end(), family.begin(), family.end());
  }
  for (const Peer& peer : peers_) all.push_back(peer.pid);
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void Session::end(std::chrono::milliseconds patience) noexcept {
  try {
    end_all(processes(), patience == 0ms ? 300ms : patience);
  } catch (const std::exception&) {
    // Reading /proc failed; closing the sockets still makes every worker leave.
  }
  children_.clear();
  peers_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace chorus::perf
