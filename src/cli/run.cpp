// chorus run: ranks on this machine, for convenience.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cores.hpp"
#include "base/descriptors.hpp"
#include "base/fd.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/rank_process.hpp"
#include "runtime/control.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = 4096;
/// After the first failure the others end by themselves, with an error that names the culprit;
/// whoever does not is asked to, and then made to.
constexpr milliseconds kGrace{4'000}, kAfterTerm{2'000};
/// What ended ranks left in their pipes is read this long; children of theirs may keep them open.
constexpr milliseconds kDrain{200};
/// As the timeout command of the coreutils.
constexpr int kTimedOut = 124;
constexpr std::size_t kMaxLine = 64 * 1024;

struct RunOptions {
  int num_ranks = 1;
  bool rank_prefix = false;
  std::vector<std::string> variables;
  double timeout_s = 0;
  bool bind = true;  ///< each rank to a core of its own, where there are enough
  std::vector<std::string> program;
};

/// One stream of one rank, cut into lines that carry its number.
class PrefixedStream {
 public:
  PrefixedStream(Fd from, int to, int rank)
      : from_(std::move(from)), to_(to), prefix_(fmt::format("[{}] ", rank)) {}
  [[nodiscard]] int fd() const { return from_.get(); }

  /// Reads what is there. False at the end.
  bool forward() {
    std::array<char, 16 * 1024> buffer;
    for (;;) {
      const ssize_t got = ::read(from_.get(), buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return true;
      if (got <= 0) break;
      pending_.append(buffer.data(), static_cast<std::size_t>(got));
      write_lines();
    }
    if (!pending_.empty()) {
      pending_ += '\n';
      write_lines();
    }
    from_.reset();
    return false;
  }

  /// Why output could not be handed on (errno), or 0.
  [[nodiscard]] int lost() const { return lost_; }

 private:
  void write_lines() {
    std::size_t begin = 0;
    std::string text;
    for (std::size_t end; (end = pending_.find('\n', begin)) != std::string::npos;) {
      text += prefix_;
      text.append(pending_, begin, end + 1 - begin);
      begin = end + 1;
    }
    pending_.erase(0, begin);
    if (pending_.size() > kMaxLine) {
      text += prefix_ + pending_ + '\n';
      pending_.clear();
    }
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t now = ::write(to_, text.data() + sent, text.size() - sent);
      if (now < 0 && errno == EINTR) continue;
      if (now < 0 && errno == EAGAIN) {  // whoever shares it made it so
        pollfd entry{to_, POLLOUT, 0};
        ::poll(&entry, 1, -1);
        continue;
      }
      if (now < 0) {
        lost_ = errno;
        return;
      }
      sent += static_cast<std::size_t>(now);
    }
  }

  Fd from_;
  int to_;
  int lost_ = 0;
  std::string prefix_, pending_;
};

/// The ranks of one `chorus run`, from start to exit status.
class Job {
 public:
  explicit Job(const RunOptions& options) : options_(options) {}

  int run() {
    block_signals();
    if (options_.rank_prefix) {
      allow_descriptors(3 * static_cast<std::size_t>(options_.num_ranks) + 1024);
    }
    Guard guard;
    guard_ = &guard;
    Coordinator coordinator(options_.num_ranks, "", 0, Secret::random(),
                            {.launcher = true, .joined_often = true});
    coordinator_ = &coordinator;
    try {
      start_all();
    } catch (...) {
      signal_all(SIGKILL);
      while (num_running_ > 0) reap(0);
      throw;
    }
    if (options_.timeout_s > 0) {
      times_out_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(options_.timeout_s));
    }
    while (num_running_ > 0) step();
    drain();
    if (lost_ != 0) {
      say(fmt::format("output of the ranks is lost: it cannot be written: {}",
                      std::strerror(lost_)));
      if (status_ == 0) status_ = exit_fault_found;
    }
    if (num_failed_ > 1 && !interrupted_)
      say(fmt::format("{} of {} ranks failed", num_failed_, options_.num_ranks));
    return status_;
  }

 private:
  static void say(const std::string& text) {
    const std::string line = fmt::format("chorus run: {}\n", text);
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line.data(), line.size());
  }

  void block_signals() {
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal :
         {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT}) {
      sigaddset(&signals, signal);
    }
    ::sigprocmask(SIG_BLOCK, &signals, nullptr);
    signals_ = Fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_) throw Error(fmt::format("signalfd: {}", std::strerror(errno)));
  }

  void start_all() {
    std::vector<std::pair<std::string, std::string>> common{
        {"CHORUS_ID", coordinator_->id()},
        {"CHORUS_WORLD_SIZE", fmt::format("{}", options_.num_ranks)},
        {"CHORUS_LOCAL_WORLD_SIZE", fmt::format("{}", options_.num_ranks)}};
    for (const std::string& variable : options_.variables) {
      const std::size_t equals = variable.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw InputError(fmt::format("-x {}: must be NAME=VALUE", variable));
      }
      common.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
    }
    const bool terminal = ::isatty(STDIN_FILENO) == 1;
    const std::vector<int> cores = options_.bind ? usable_cores() : std::vector<int>();
    const auto num_ranks = static_cast<std::size_t>(options_.num_ranks);
    for (int rank = 0; rank < options_.num_ranks; ++rank) {
      auto changes = common;
      changes.emplace_back("CHORUS_RANK", fmt::format("{}", rank));
      changes.emplace_back("CHORUS_LOCAL_RANK", fmt::format("{}", rank));
      RankProcess process =
          start({.arguments = options_.program,
                 .environment = environment_with(changes),
                 .capture_output = options_.rank_prefix,
                 .inherit_input = rank == 0 && !terminal,
                 .core = num_ranks <= cores.size() ? cores[rank * cores.size() / num_ranks] : -1},
                *guard_);
      pids_.push_back(process.pid);
      ++num_running_;
      if (!options_.rank_prefix) continue;
      streams_.emplace_back(std::move(process.out), STDOUT_FILENO, rank);
      streams_.emplace_back(std::move(process.err), STDERR_FILENO, rank);
    }
  }

  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const {
    std::optional<Clock::time_point> next = deadline_;
    if (times_out_ && (!next || *times_out_ < *next)) next = times_out_;
    return next;
  }

  void step() {
    int wait_ms = -1;
    if (const auto next = next_deadline()) {
      const auto left = std::chrono::duration_cast<milliseconds>(*next - Clock::now()).count() + 1;
      wait_ms = static_cast<int>(std::clamp<long long>(left, 0, 60'000));
    }
    wait_for_input(wait_ms);
    take_signals();
    reap(WNOHANG);
    const auto now = Clock::now();
    if (times_out_ && *times_out_ <= now) {
      times_out_.reset();
      say(fmt::format("not finished after {} s", options_.timeout_s));
      if (status_ == 0) status_ = kTimedOut;
      interrupted_ = true;
      escalate(now);
    }
    if (deadline_ && *deadline_ <= now) escalate(now);
  }

  void wait_for_input(int wait_ms) {
    std::vector<pollfd> entries{{signals_.get(), POLLIN, 0}};
    for (const PrefixedStream& stream : streams_) entries.push_back({stream.fd(), POLLIN, 0});
    if (::poll(entries.data(), entries.size(), wait_ms) <= 0) return;
    for (std::size_t i = entries.size(); i-- > 1;) {
      if (entries[i].revents == 0) continue;
      const bool open = streams_[i - 1].forward();
      if (streams_[i - 1].lost() != 0) lost_ = streams_[i - 1].lost();
      if (open) continue;
      streams_.erase(streams_.begin() + static_cast<std::ptrdiff_t>(i) - 1);
    }
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) continue;
      if (signal == SIGTSTP) {
        pause_all();
        continue;
      }
      if (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGCONT) {  // the ranks' business
        signal_all(signal);
        continue;
      }
      if (status_ == 0) status_ = 128 + signal;
      interrupted_ = true;
      if (deadline_) {  // asked twice
        escalate(Clock::now());
      } else {
        end_all(signal);
        deadline_ = Clock::now() + kGrace;
      }
    }
  }

  /// Ctrl-Z: the ranks, which no terminal signals, stop with the launcher and go on with it. The
  /// time in between does not count.
  void pause_all() {
    const auto from = Clock::now();
    signal_all(SIGTSTP);
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTSTP);
    ::raise(SIGTSTP);  // pending until it is let through: nobody but us may be stopped by it
    ::sigprocmask(SIG_UNBLOCK, &stop, nullptr);
    ::sigprocmask(SIG_BLOCK, &stop, nullptr);
    signal_all(SIGCONT);
    const auto away = Clock::now() - from;
    if (deadline_) *deadline_ += away;
    if (times_out_) *times_out_ += away;
  }

  void reap(int flags) {
    for (;;) {
      int wait_status = 0;
      const pid_t pid = ::waitpid(-1, &wait_status, flags | WUNTRACED);
      if (pid < 0 && errno == EINTR) continue;
      if (pid <= 0) return;
      const auto found = std::find(pids_.begin(), pids_.end(), pid);
      if (found == pids_.end()) continue;
      const int rank = static_cast<int>(found - pids_.begin());
      if (WIFSTOPPED(wait_status)) {
        stopped(rank, WSTOPSIG(wait_status));
        continue;
      }
      ended(rank, wait_status);
      if (flags == 0) return;
    }
  }

  /// The others wait for it, and nothing would say why.
  void stopped(int rank, int signal) const {
    const pid_t pid = pids_[static_cast<std::size_t>(rank)];
    say(fmt::format("rank {} (pid {}) is stopped by {}: {}kill -CONT {} lets it go on", rank, pid,
                    describe_signal(signal),
                    signal == SIGTTIN || signal == SIGTTOU
                        ? "ranks have no terminal; after that is mended, "
                        : "",
                    pid));
  }

  void ended(int rank, int wait_status) {
    const pid_t pid = std::exchange(pids_[static_cast<std::size_t>(rank)], -1);
    --num_running_;
    const std::string how = describe_end(wait_status);
    coordinator_->report_death(rank, how);
    // What it started goes with it.
    ::kill(-pid, SIGKILL);
    guard_->forget(pid);
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return;
    if (num_failed_++ > 0) return;
    if (!interrupted_) say(fmt::format("rank {} (pid {}) {}", rank, pid, how));
    if (status_ == 0) {
      status_ = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    }
    if (!deadline_) deadline_ = Clock::now() + kGrace;
  }

  void escalate(Clock::time_point now) {
    if (terminated_) {
      say(num_running_ == 1 ? "1 rank has not ended: killing it"
                            : fmt::format("{} ranks have not ended: killing them", num_running_));
      signal_all(SIGKILL);
      deadline_ = now + std::chrono::hours(1);
      return;
    }
    terminated_ = true;
    end_all(SIGTERM);
    deadline_ = now + kAfterTerm;
  }

  void end_all(int signal) const {
    signal_all(signal);
    signal_all(SIGCONT);  // who is stopped would not notice
  }

  void signal_all(int signal) const {
    for (const pid_t pid : pids_) {
      if (pid > 0) ::kill(-pid, signal);
    }
  }

  void drain() {
    const auto until = Clock::now() + kDrain;
    while (!streams_.empty() && Clock::now() < until) wait_for_input(20);
  }

  const RunOptions& options_;
  Guard* guard_ = nullptr;
  Coordinator* coordinator_ = nullptr;
  Fd signals_;
  std::vector<pid_t> pids_;  ///< by rank; -1 once ended
  std::vector<PrefixedStream> streams_;
  int num_running_ = 0, num_failed_ = 0;
  int status_ = 0;
  int lost_ = 0;              ///< why output was lost (errno)
  bool interrupted_ = false;  ///< by a signal or --timeout: that ranks fail then is no news
  bool terminated_ = false;
  std::optional<Clock::time_point> deadline_;   ///< of the present patience with the ranks
  std::optional<Clock::time_point> times_out_;  ///< --timeout
};

}  // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Start the ranks of a program on this machine");
  command->add_option("-n,--ranks", options->num_ranks, "Number of ranks")
      ->required()
      ->check(CLI::Range(1, kMaxRanks));
  command->add_flag("--rank-prefix", options->rank_prefix, "Begin each line of output with [rank]");
  command->add_option("-x", options->variables, "Set a variable for the ranks: NAME=VALUE")
      ->allow_extra_args(false);
  command->add_flag("--bind,!--no-bind", options->bind,
                    "Give each rank a core of its own where there are enough (default)");
  command->add_option("--timeout", options->timeout_s, "End the ranks after this many seconds")
      ->check(number_within(kLeastSeconds, kMostSeconds));
  command->add_option("PROGRAM", options->program, "The program and its arguments")->required();
  command->positionals_at_end();  // its options are its own
  command->footer(
      "Usage: chorus run -n N [options] -- PROGRAM [ARGUMENTS]\n"
      "Exit code: that of the first rank that failed (128 + signal if it was killed),\n"
      "124 after --timeout, 2 if the program cannot be started.\n"
      "Example: chorus run -n 4 -- ./build/dev/examples/01_all_reduce");
  command->callback([options, &exit_code] { exit_code = Job(*options).run(); });
}

}  // namespace chorus
