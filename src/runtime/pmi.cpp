#include "runtime/pmi.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string_view>

#include "chorus/error.hpp"
#include "runtime/control_net.hpp"
#include "runtime/options_env.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxLine = 4096;

/// One request, one answer, each a line "cmd=word key=value key=value".
class Pmi {
 public:
  Pmi(int fd, int timeout_ms) : fd_(fd) {
    set_deadline(timeout_ms);
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
  std::string get(const std::string& key) {
    return field(ask(fmt::format("cmd=get kvsname={} key={}", kvs_, key), "get_result"), "value");
  }

 private:
  [[noreturn]] static void fail(std::string_view what) {
    throw BootstrapError(fmt::format("PMI (PMI_FD={}): {}", env("PMI_FD").value_or(""), what));
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

  int fd_;
  int owner_generation_ = net::fork_generation();
  std::string kvs_, pending_;
  Clock::time_point deadline_;
};

}  // namespace

std::string publish_by_pmi(int rank, const std::string& value, int timeout_ms) {
  static std::mutex mutex;
  static std::unique_ptr<Pmi> pmi;  // ends with the process: PMI cannot be initialised twice
  static int joinings = 0;
  const std::lock_guard lock(mutex);
  if (!pmi) {
    const auto fd = env_integer("PMI_FD", 0, 1 << 20);
    if (!fd) throw BootstrapError("PMI_FD is not set: no PMI launcher to ask");
    pmi = std::make_unique<Pmi>(static_cast<int>(*fd), timeout_ms);
  }
  pmi->set_deadline(timeout_ms);
  // Keys cannot be written twice.
  const std::string key = fmt::format("chorus-id-{}", joinings++);
  if (rank == 0) pmi->put(key, value);
  pmi->barrier();
  return pmi->get(key);
}

}  // namespace chorus
