// chorus run: ranks on this machine, for convenience.
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/cores.hpp"
#include "base/counted.hpp"
#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "cli/cli.hpp"
#include "cli/run/rank_output.hpp"
#include "cli/run/rank_process.hpp"
#include "cli/run/run_needs.hpp"
#include "runtime/control/control.hpp"

namespace chorus {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr int kMaxRanks = 4096;
/// After the first failure the others end by themselves, with an error that names the culprit;
/// whoever does not is asked to, and then made to.
constexpr milliseconds kGrace{4'000}, kAfterTerm{2'000};
/// As the timeout command of the coreutils.
constexpr int kTimedOut = 124;
/// Who reads the output of a job that failed, or was ended, is waited for so long, and again after
/// each byte that it took.
constexpr milliseconds kReader{2'000}, kReaderAtEnd{200};
/// How often it is looked whether ranks that were started anew are all that is left, ms.
constexpr int kLookAtWaiting = 200;

struct RunOptions {
  int num_ranks = 1;
  bool rank_prefix = false;
  std::vector<std::string> variables;
  double timeout_s = 0;
  bool bind = true;  ///< each rank to a core of its own, where there are enough
  int respawn = -1;  ///< failed ranks that are started anew, in all; < 0: a failure ends the job
  std::vector<std::string> program;
};

/// The ranks of one `chorus run`, from start to exit status.
class LocalJob {
 public:
  explicit LocalJob(const RunOptions& options) : options_(options) {
    if (!lead_to_one(STDOUT_FILENO, STDERR_FILENO)) err_.emplace(STDERR_FILENO);
  }

  int run() {
    block_signals();
    require_room(static_cast<std::size_t>(options_.num_ranks), options_.rank_prefix);
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
    settle_respawned();
    const bool is_read = drain();
    tell_lost();
    if (num_failed_ > 1 && !interrupted_)
      say(fmt::format("{} of {} ranks failed", num_failed_, options_.num_ranks));
    if (is_read) drain();  // what has just been said
    return status_;
  }

 private:
  void say(const std::string& text) { err().put(fmt::format("chorus run: {}\n", text)); }

  /// Standard error; the same as standard output where both are one, or lines would mix.
  Outlet& err() { return err_ ? *err_ : out_; }

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
    common_ = {{"CHORUS_ID", coordinator_->id()},
               {"CHORUS_WORLD_SIZE", fmt::format("{}", options_.num_ranks)},
               {"CHORUS_LOCAL_WORLD_SIZE", fmt::format("{}", options_.num_ranks)}};
    for (const std::string& variable : options_.variables) {
      const std::size_t equals = variable.find('=');
      if (equals == std::string::npos || equals == 0) {
        throw InputError(fmt::format("-x {}: must be NAME=VALUE", variable));
      }
      common_.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
    }
    if (options_.bind) cores_ = usable_cores();
    lives_.resize(static_cast<std::size_t>(options_.num_ranks));
    for (int rank = 0; rank < options_.num_ranks; ++rank) start_rank(rank, false);
  }

  void start_rank(int rank, bool anew) {
    auto changes = common_;
    changes.emplace_back("CHORUS_RANK", fmt::format("{}", rank));
    changes.emplace_back("CHORUS_LOCAL_RANK", fmt::format("{}", rank));
    if (anew) changes.emplace_back("CHORUS_REJOIN", "1");
    const auto num_ranks = static_cast<std::size_t>(options_.num_ranks);
    const bool terminal = ::isatty(STDIN_FILENO) == 1;
    RankProcess process =
        start({.arguments = options_.program,
               .environment = environment_with(changes),
               .capture_output = options_.rank_prefix,
               .inherit_input = rank == 0 && !terminal && !anew,
               .core = num_ranks <= cores_.size() ? cores_[rank * cores_.size() / num_ranks] : -1},
              *guard_);
    if (anew) {
      pids_[static_cast<std::size_t>(rank)] = process.pid;
    } else {
      pids_.push_back(process.pid);
    }
    lives_[static_cast<std::size_t>(rank)] = {.is_anew = anew};
    ++num_running_;
    if (!options_.rank_prefix) return;
    streams_.emplace_back(std::move(process.out), out_, rank);
    streams_.emplace_back(std::move(process.err), err(), rank);
  }

  [[nodiscard]] std::optional<Clock::time_point> next_deadline() const {
    std::optional<Clock::time_point> next = deadline_;
    if (times_out_ && (!next || *times_out_ < *next)) next = times_out_;
    return next;
  }

  void step() {
    int wait_ms = num_anew() > 0 ? kLookAtWaiting : -1;
    if (const auto next = next_deadline()) {
      const auto left = std::chrono::duration_cast<milliseconds>(*next - Clock::now()).count() + 1;
      const auto most = wait_ms < 0 ? 60'000LL : wait_ms;
      wait_ms = static_cast<int>(std::clamp<long long>(left, 0, most));
    }
    move_output(wait_ms);
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
    dismiss_waiting(now);
  }

  /// Waits for a signal, or for output to hand on and room for it. Ranks print no faster than their
  /// reader reads.
  void move_output(int wait_ms) {
    std::vector<pollfd> entries{{signals_.get(), POLLIN, 0}};
    for (const Outlet* outlet : {&out_, &err()}) {
      entries.push_back({outlet->is_pending() ? outlet->fd() : -1, POLLOUT, 0});
    }
    const std::size_t first = entries.size();
    for (const PrefixedStream& stream : streams_) {
      entries.push_back({stream.outlet().is_full() ? -1 : stream.fd(), POLLIN, 0});
    }
    if (::poll(entries.data(), entries.size(), wait_ms) <= 0) return;
    out_.flush();
    err().flush();
    for (std::size_t i = entries.size(); i-- > first;) {
      const auto stream = streams_.begin() + static_cast<std::ptrdiff_t>(i - first);
      if (entries[i].revents != 0 && !stream->forward()) streams_.erase(stream);
    }
  }

  /// True if one asks for the end of the job.
  bool take_signals() {
    bool is_asked = false;
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
      interrupted_ = is_asked = true;
      if (num_running_ == 0) continue;
      if (deadline_) {  // asked twice
        escalate(Clock::now());
      } else {
        end_all(signal);
        deadline_ = Clock::now() + kGrace;
      }
    }
    return is_asked;
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
  void stopped(int rank, int signal) {
    const pid_t pid = pids_[static_cast<std::size_t>(rank)];
    say(fmt::format("rank {} (pid {}) is stopped by {}: {}kill -CONT {} resumes it", rank, pid,
                    describe_signal(signal),
                    signal == SIGTTIN || signal == SIGTTOU
                        ? "ranks have no terminal to read from; once it no longer does, "
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
    Life& life = lives_[static_cast<std::size_t>(rank)];
    if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) {
      life.went_well = true;
      return;
    }
    if (life.is_dismissed) return;
    const int status =
        WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
    if (is_survived(rank, pid, how, wait_status, status)) return;
    if (num_failed_++ > 0) return;
    if (!interrupted_) say(fmt::format("rank {} (pid {}) {}", rank, pid, how));
    if (status_ == 0) status_ = first_failure_ != 0 ? first_failure_ : status;
    if (!deadline_) deadline_ = Clock::now() + kGrace;
  }

  /// Whether the job goes on although this rank failed: started anew, where somebody is left to
  /// take it in; or without it, if it was killed.
  bool is_survived(int rank, pid_t pid, const std::string& how, int wait_status, int status) {
    if (options_.respawn < 0 || interrupted_ || deadline_) return false;
    if (first_failure_ == 0) first_failure_ = status;
    const bool is_anyone_left = num_running_ > num_waiting();
    if (num_respawned_ >= options_.respawn || !is_anyone_left) {
      const bool goes_on = WIFSIGNALED(wait_status) && is_anyone_left;
      if (goes_on) say(fmt::format("rank {} (pid {}) {}; the others go on", rank, pid, how));
      return goes_on;
    }
    ++num_respawned_;
    say(fmt::format("rank {} (pid {}) {}; started anew ({} of {})", rank, pid, how, num_respawned_,
                    options_.respawn));
    start_rank(rank, true);
    return true;
  }

  [[nodiscard]] int num_anew() const {
    return static_cast<int>(std::ranges::count_if(pids_, [&](const pid_t& pid) {
      return pid > 0 && lives_[static_cast<std::size_t>(&pid - pids_.data())].is_anew;
    }));
  }
  /// Of those that were started anew and that nobody has taken in yet.
  [[nodiscard]] int num_waiting() const { return std::min(coordinator_->waiting(), num_anew()); }

  /// Where only such ranks are left that wait to be taken in, nobody will.
  void dismiss_waiting(Clock::time_point now) {
    if (num_running_ == 0 || num_anew() < num_running_ || num_waiting() < num_running_ ||
        deadline_) {
      return;
    }
    say(fmt::format("{} started anew {} not taken in: all others have ended",
                    counted(num_running_, "rank"), num_running_ == 1 ? "was" : "were"));
    for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
      if (pids_[rank] > 0) lives_[rank].is_dismissed = true;
    }
    end_all(SIGTERM);
    terminated_ = true;
    deadline_ = now + kAfterTerm;
  }

  /// A job whose ranks all ended well but for some that were started anew, and not needed, went
  /// well.
  void settle_respawned() {
    const bool any = std::ranges::any_of(lives_, &Life::went_well);
    if (status_ == 0 && !any) status_ = first_failure_;
  }

  void escalate(Clock::time_point now) {
    if (terminated_) {
      say(fmt::format("{} {} not ended: killing {}", counted(num_running_, "rank"),
                      num_running_ == 1 ? "has" : "have", num_running_ == 1 ? "it" : "them"));
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

  [[nodiscard]] bool is_pending() { return out_.is_pending() || err().is_pending(); }

  /// Hands on what ended ranks left in their pipes. After success that waits for its reader, as the
  /// output of any program does, until a signal comes or --timeout passes. False if it gave up.
  bool drain() {
    for (PrefixedStream& stream : streams_) stream.ends_here();
    auto moved = Clock::now();
    for (;;) {
      std::erase_if(streams_, [](PrefixedStream& stream) { return !stream.forward(); });
      if (streams_.empty() && !is_pending()) return true;
      const std::uint64_t before = out_.written() + err().written();
      move_output(static_cast<int>(kReaderAtEnd.count()));
      if (take_signals()) return false;
      const auto now = Clock::now();
      if (out_.written() + err().written() != before) moved = now;
      if (status_ == 0 && times_out_ && *times_out_ <= now) status_ = kTimedOut;
      if (status_ != 0 && now - moved > (interrupted_ ? kReaderAtEnd : kReader)) return false;
    }
  }

  void tell_lost() {
    std::string why;
    for (const Outlet* outlet : {&out_, &err()}) {
      if (outlet->lost() != 0) {
        why = fmt::format("it cannot be written: {}", std::strerror(outlet->lost()));
      }
    }
    if (why.empty() && is_pending()) why = "nobody reads it";
    if (why.empty()) return;
    say(fmt::format("output of the ranks is lost: {}", why));
    if (status_ == 0) status_ = exit_bad_input;
  }

  /// The present process of a rank.
  struct Life {
    bool is_anew = false;       ///< not the first
    bool is_dismissed = false;  ///< nobody needed it
    bool went_well = false;
  };

  const RunOptions& options_;
  std::vector<std::pair<std::string, std::string>> common_;  ///< variables of all ranks
  std::vector<int> cores_;
  std::vector<Life> lives_;  ///< by rank
  int num_respawned_ = 0, first_failure_ = 0;
  Guard* guard_ = nullptr;
  Coordinator* coordinator_ = nullptr;
  Fd signals_;
  std::vector<pid_t> pids_;  ///< by rank; -1 once ended
  Outlet out_{STDOUT_FILENO};
  std::optional<Outlet> err_;  ///< see err()
  std::vector<PrefixedStream> streams_;
  int num_running_ = 0, num_failed_ = 0;
  int status_ = 0;
  bool interrupted_ = false;  ///< by a signal or --timeout: that ranks fail then is no news
  bool terminated_ = false;
  std::optional<Clock::time_point> deadline_;   ///< of the present patience with the ranks
  std::optional<Clock::time_point> times_out_;  ///< --timeout
};

}  // namespace

namespace {

/// Why there is no such option, and what does it.
std::string on_several_hosts(const char* option, const std::string& hosts) {
  return fmt::format(
      "chorus run starts ranks on this machine only. On several hosts the launchers that are there "
      "start them, and the program needs no change: mpirun {0} {1} -n N PROGRAM (Open MPI; MPICH: "
      "mpiexec {2} {1}), srun --mpi=pmix -n N PROGRAM, or on each host torchrun --nnodes=HOSTS "
      "--nproc-per-node=RANKS --rdzv-endpoint=FIRST_HOST:29500 PROGRAM",
      option, hosts, std::string_view(option) == "--host" ? "-hosts" : "-f");
}

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
  command
      ->add_option("--respawn", options->respawn,
                   "Let the others go on when a rank is killed, and start ranks that fail anew, so "
                   "many in all")
      ->check(CLI::Range(0, 1'000'000));
  command->add_option("PROGRAM", options->program, "The program and its arguments")->required();
  for (const auto& [names, instead] : {std::pair("--host,--hosts,-H", "--host"),
                                       std::pair("--hostfile,--machinefile", "--hostfile")}) {
    command
        ->add_option_function<std::string>(
            names, [](const std::string&) {}, "Not here: use mpirun, srun or torchrun")
        ->check([instead = instead](const std::string& hosts) {
          return on_several_hosts(instead, hosts);
        })
        ->group("");
  }
  command->positionals_at_end();  // its options are its own
  command->footer(
      "Usage: chorus run -n N [options] -- PROGRAM [ARGUMENTS]\n"
      "Exit code: that of the first rank that failed (128 + signal if it was killed),\n"
      "124 after --timeout, 2 if the program cannot be started.\n"
      "Example: chorus run -n 4 -- ./my_program");
  command->callback([options, &exit_code] { exit_code = LocalJob(*options).run(); });
}

}  // namespace chorus
