#include "perf/session.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "chorus/error.hpp"
#include "perf/start_line.hpp"
#include "runtime/control/net.hpp"

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

/// On any port of `address`.
Fd listen_at_address(const std::string& address, std::string& control) {
  const net::Endpoint endpoint = net::resolve(address, 0);
  Fd socket(::socket(endpoint.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket || ::bind(socket.get(), endpoint.address(), endpoint.size()) != 0 ||
      ::listen(socket.get(), 1024) != 0) {
    throw Error(fmt::format("cannot listen at {}: {}", address, std::strerror(errno)));
  }
  control = fmt::format("tcp:{}:{}", address, net::local_end(socket.get()).port());
  return socket;
}

class LocalWorkers final : public Workers {
 public:
  explicit LocalWorkers(const std::vector<Command>& commands) {
    for (const Command& command : commands) children_.emplace_back(command);
  }

  std::string failure() override {
    for (Child& child : children_) {
      child.drain();
      if (const std::string how = child.ended(); !how.empty()) return how + last_words();
    }
    return {};
  }

  std::string last_words() override {
    ::poll(nullptr, 0, 50);  // what a dying worker says may still be on its way here
    for (Child& child : children_) {
      child.drain();
      if (std::string words = words_of(child.output()); !words.empty()) return words;
    }
    return {};
  }

  bool all_ended() override {
    return std::all_of(children_.begin(), children_.end(), [](Child& child) {
      child.drain();
      return !child.ended().empty();
    });
  }

  std::vector<pid_t> processes() override {
    std::vector<pid_t> all;
    for (Child& child : children_) {
      if (!child.ended().empty()) continue;  // its number may be another's by now
      const std::vector<pid_t> family = family_of(child.pid());
      all.insert(all.end(), family.begin(), family.end());
    }
    return all;
  }

  void end(std::chrono::milliseconds patience) override {
    end_all(processes(), patience);
    children_.clear();
  }

 private:
  std::vector<Child> children_;
};

}  // namespace

std::string words_of(const std::string& output) {
  const std::size_t begin = output.find_first_not_of("-\n \t");
  if (begin == output.npos) return {};
  std::string words = output.substr(begin, 300);
  std::replace(words.begin(), words.end(), '\n', ' ');
  return ": " + words;
}

std::unique_ptr<Workers> local_workers(const std::vector<Command>& commands) {
  return std::make_unique<LocalWorkers>(commands);
}

Session::Session(const Launch& launch, std::string directory, int world_size, Seconds deadline)
    : directory_(std::move(directory)), world_size_(world_size) {
  std::filesystem::create_directories(directory_);
  try {
    const std::string control = directory_ + "/control";
    const std::string line = directory_ + "/line";
    StartLine::create(line);
    listener_ = listen_at(control);
    std::vector<Command> commands = launch.commands;
    for (Command& command : commands) {
      for (const std::string& word : {std::string("--control"), control, std::string("--line"),
                                      line, std::string("--directory"), directory_}) {
        command.argv.push_back(word);
      }
    }
    workers_ = local_workers(commands);
    greet(after(deadline));
  } catch (...) {
    end(0ms);
    throw;
  }
}

Session::Session(const AcrossHosts& hosts, std::string directory, int world_size, Seconds deadline)
    : directory_(std::move(directory)), world_size_(world_size), token_(hosts.token) {
  std::filesystem::create_directories(directory_);
  try {
    std::string control;
    listener_ = listen_at_address(hosts.address, control);
    workers_ = hosts.start({"--control", control});
    greet(after(deadline));
    welcome(hosts);
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
  while (!peers_.empty() && !workers_->all_ended() && Clock::now() < deadline) {
    ::poll(nullptr, 0, 5);
  }
  end(500ms);
}

void Session::accept_one() {
  Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket) return;
  Peer peer;
  if (token_.empty()) {
    ucred who{};
    socklen_t length = sizeof who;
    ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &who, &length);
    peer.pid = who.pid;
    peer.admitted = true;
  } else {
    constexpr std::uint32_t kLongestToken = 256;
    peer.reader.allow(kLongestToken);
    const int on = 1;
    ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  peer.socket = std::move(socket);
  peers_.push_back(std::move(peer));
}

void Session::greet(Deadline deadline) {
  int ready = 0;
  while (ready < world_size_) {
    wait_for_input(deadline, "waiting for its ranks to start");
    accept_one();
    for (Peer& peer : peers_) {
      try {
        read_from(peer);
        while (const auto frame = peer.reader.next()) take(peer, *frame, ready);
      } catch (const Error&) {
        if (peer.admitted) throw;
        peer.socket.reset();  // an unauthenticated peer
      }
    }
    drop_unauthenticated();
    answer_waiting();
  }
  std::erase_if(peers_, [](const Peer& peer) { return !peer.admitted; });
  std::sort(peers_.begin(), peers_.end(),
            [](const Peer& a, const Peer& b) { return a.rank < b.rank; });
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (peers_[i].rank != static_cast<int>(i)) throw Error("two workers claim one rank");
  }
}

void Session::drop_unauthenticated() {
  std::erase_if(peers_, [](const Peer& peer) { return !peer.socket; });
}

void Session::take(Peer& peer, const std::string& frame, int& ready) {
  if (!peer.admitted) {
    if (frame != token_) throw Error("an unauthenticated peer");
    peer.admitted = true;
    peer.reader.allow(kMaxFrameBytes);
    return;
  }
  const Reply reply = reply_from_json(frame);
  if (!reply.error.empty()) throw Error(reply.error);
  if (reply.set) {
    meeting_[reply.set->first] = reply.set->second;
    return;
  }
  if (reply.get) {
    peer.waits_for = *reply.get;
    return;
  }
  greeted(peer, reply);
  ++ready;
}

void Session::greeted(Peer& peer, const Reply& reply) {
  if (!reply.hello || reply.hello->world_size != world_size_ || reply.hello->rank < 0 ||
      reply.hello->rank >= world_size_) {
    throw Error(fmt::format("a worker says it is rank {} of {}, and {} ranks were started",
                            reply.hello ? reply.hello->rank : -1,
                            reply.hello ? reply.hello->world_size : 0, world_size_));
  }
  peer.rank = reply.hello->rank;
  peer.host = reply.hello->host;
  if (peer.pid < 0) peer.pid = reply.hello->pid;
  version_ = reply.hello->version;
}

void Session::answer_waiting() {
  for (Peer& peer : peers_) {
    const auto found = meeting_.find(peer.waits_for);
    if (peer.waits_for.empty() || found == meeting_.end()) continue;
    send_frame(peer.socket.get(), found->second);
    peer.waits_for.clear();
  }
}

void Session::welcome(const AcrossHosts& hosts) {
  for (std::size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].host != hosts.hosts[rank]) {
      throw Error(fmt::format(
          "its launcher put rank {} on another host than the job has it on: the ranks of the job "
          "have an order that this launcher cannot be given",
          rank));
    }
    send_frame(peers_[rank].socket.get(), to_json(hosts.welcomes[rank]));
  }
}

void Session::agree(const Agreement& agreement) {
  const std::string number = std::to_string(agreement.number);
  for (const Peer& peer : peers_) {
    if (!agreement.pair || peer.rank < 2) send_frame(peer.socket.get(), number);
  }
}

std::vector<pid_t> Session::pids() const {
  std::vector<pid_t> all;
  for (const Peer& peer : peers_) all.push_back(peer.pid);
  return all;
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
    if (const std::string how = workers_->failure(); !how.empty()) throw Error("it " + how);
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
    throw Error(fmt::format("{} died{}",
                            peer.rank < 0 ? "a worker" : fmt::format("rank {}", peer.rank),
                            workers_ ? workers_->last_words() : ""));
  }
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
        if (reply.agree && peer.rank == 0) {
          agree(*reply.agree);
          continue;
        }
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
  std::vector<pid_t> all = workers_->processes();
  if (token_.empty()) {
    for (const Peer& peer : peers_) all.push_back(peer.pid);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void Session::end(std::chrono::milliseconds patience) noexcept {
  try {
    if (workers_) {
      const std::chrono::milliseconds at_least = patience == 0ms ? 300ms : patience;
      const std::vector<pid_t> strays = processes();
      workers_->end(at_least);
      end_all(strays, at_least);
    }
  } catch (const std::exception&) {
    // Reading /proc failed; closing the sockets still makes every worker leave.
  } catch (const Interrupted&) {
    // So it is: whoever waits next hears of it.
  }
  workers_.reset();
  peers_.clear();
  std::error_code ignored;
  std::filesystem::remove_all(directory_, ignored);
}

}  // namespace chorus::perf
