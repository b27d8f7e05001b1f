// The processes of a trial: started, struck, judged, and gone in the end.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <new>
#include <sstream>
#include <stdexcept>

#include "base/text/log.hpp"
#include "diary.hpp"
#include "runtime/control/control.hpp"

namespace chorus::campaign {
namespace {

class Job {
 public:
  explicit Job(const Trial& trial) : trial_(trial), shared_(make_shared_memory(descriptor_)) {
    shared_->trial = trial;
    // What a launcher leaves behind comes to this process, which sees it.
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    // What is disturbed is logged; here it is no news.
    set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  }

  Result run() {
    if (trial_.place == Place::launcher) {
      launch();
    } else {
      for (Rank rank = 0; rank < trial_.processes(); ++rank) start(rank);
    }
    std::unique_ptr<Coordinator> coordinator;  // after the last fork
    if (trial_.place == Place::elsewhere) {
      coordinator = std::make_unique<Coordinator>(
          trial_.processes(), "", 0, Secret::random(),
          Coordinator::Host{.joined_often = trial_.phase == Phase::take_in});
      shared_->id.hand(coordinator->id());
    }
    Result result;
    if (!await([&] { return all([](const Diary& own) { return own.in_phase || own.ended; }); })) {
      result.broken = "the ranks did not come so far";
    } else {
      ::usleep(static_cast<useconds_t>(trial_.after_us));
      strike(coordinator);
      judge(result);
    }
    shared_->over = true;
    coordinator.reset();
    end(result);
    return result;
  }

 private:
  void start(Rank rank) {
    const pid_t pid = ::fork();
    if (pid != 0) return pids_.push_back(pid);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    live(*shared_, rank);
  }

  void launch() {
    const std::string count = fmt::format("{}", trial_.processes());
    const std::string memory = fmt::format("/proc/{}/fd/{}", ::getpid(), descriptor_);
    launcher_ = ::fork();
    if (launcher_ != 0) return pids_.push_back(launcher_);
    const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
    ::execl(CAMPAIGN_LAUNCHER, CAMPAIGN_LAUNCHER, "run", "-n", count.c_str(), "--respawn", "0",
            "--", CAMPAIGN_RANK, "--rank", memory.c_str(), nullptr);
    ::_exit(127);
  }

  [[nodiscard]] Diary& diary(Rank rank) const { return shared_->ranks[rank]; }

  /// Of the ranks that are there to tell.
  template <typename Holds>
  bool all(Holds holds) {
    for (Rank rank = 0; rank < trial_.processes(); ++rank) {
      if (!is_victim(rank) && !(struck_ && is_comer(rank)) && !holds(diary(rank))) return false;
    }
    return true;
  }
  bool all_ended() {
    return all([](const Diary& own) { return own.ended.load(); });
  }

  [[nodiscard]] bool is_comer(Rank rank) const { return rank == trial_.world_size; }
  [[nodiscard]] bool is_victim(Rank rank) const {
    const auto lost = trial_.lost();
    return struck_ && std::find(lost.begin(), lost.end(), rank) != lost.end();
  }

  void strike(std::unique_ptr<Coordinator>& coordinator) {
    struck_ = true;
    struck_us_ = now_us();
    const auto send = [&](Rank rank, int signal) { ::kill(diary(rank).pid, signal); };
    switch (trial_.fault) {
      case Fault::lose_coordinator:
        coordinator.reset();
        ::usleep(100'000);  // calls during the succession, and after it
        break;
      case Fault::lose_launcher:
        ::kill(launcher_, SIGKILL);
        return;
      case Fault::stop:
        send(trial_.victim, SIGSTOP);
        break;
      case Fault::cut_control:
      case Fault::cut_data:
        send(trial_.victim, SIGUSR1);
        break;
      case Fault::kill_two:
        send(trial_.victim, SIGKILL);
        ::usleep(static_cast<useconds_t>(trial_.after_us / 4));
        send(trial_.second, SIGKILL);
        break;
      case Fault::kill:
        send(trial_.victim, SIGKILL);
        break;
    }
    // Where it was not noticed, or there is nothing to notice, the others end well.
    const double calls_s = trial_.cuts() || is_comer(trial_.victim) ? 1 : 0;
    if (calls_s > 0) (void)await([&] { return all_ended(); }, calls_s);
    shared_->enough = true;
  }

  void judge(Result& result) {
    if (trial_.fault == Fault::lose_launcher) return;  // by what it leaves: end()
    const bool stops = trial_.fault == Fault::stop;
    // With a stopped rank there is nobody to go on without: it was only late.
    const auto over = [&](const Diary& own) {
      return (stops && own.named_us != 0) || own.ended.load();
    };
    if (!await([&] { return all(over); })) result.broken = "a rank hung";
    if (trial_.fault == Fault::cut_control && !result.broken &&
        !await([&] { return diary(trial_.victim).ended.load(); })) {
      result.broken = "the rank that was cut off hung";
    }
    for (Rank rank = 0; rank < trial_.processes(); ++rank) {
      if (is_victim(rank)) continue;
      const Diary& own = diary(rank);
      if (!result.broken) result.broken = broken_by(rank, own);
      if (is_comer(rank)) continue;
      if (own.named_us != 0) result.named_s = std::max(result.named_s, since(own.named_us));
      if (own.usable_us != 0) result.usable_s = std::max(result.usable_s, since(own.usable_us));
    }
    if (!result.broken) result.broken = broken_together();
  }

  [[nodiscard]] double since(std::int64_t at_us) const {
    return static_cast<double>(at_us - struck_us_) * 1e-6;
  }

  /// Whether there may be nobody who was told.
  [[nodiscard]] bool may_pass() const {
    if (trial_.fault == Fault::cut_data || is_comer(trial_.victim)) return true;
    if (trial_.phase == Phase::leave) return true;  // it may have left
    // A relay finds another way, and so does a rank that has not been let in; and where nobody
    // needs the coordinator, calls go on well.
    return trial_.fault == Fault::cut_control &&
           (trial_.relayed || trial_.phase == Phase::join || trial_.finishes);
  }

  [[nodiscard]] std::optional<std::string> broken_by(Rank rank, const Diary& own) const {
    const auto say = [&](const std::string& what) { return fmt::format("rank {} {}", rank, what); };
    const std::string named = own.named;
    if (own.broken[0] != '\0' && trial_.fault != Fault::stop) return could_not_go_on();
    if (is_comer(rank)) return std::nullopt;
    if (trial_.fault == Fault::lose_coordinator) {
      if (own.named_us != 0) return say("names a failure, though no rank failed: " + named);
      if (own.usable_us == 0) return say("did not go on");
      return std::nullopt;
    }
    if (own.named_us == 0) {
      if (!may_pass()) return say("was told nothing");
      return std::nullopt;
    }
    if (!names_a_victim(named)) return say("names somebody else: " + named);
    const bool goes_on = trial_.phase != Phase::join && trial_.phase != Phase::leave;
    if (goes_on && trial_.fault != Fault::stop && own.usable_us == 0) return say("did not go on");
    return std::nullopt;
  }

  /// What all that are left say: one may have been kept from it by another.
  [[nodiscard]] std::string could_not_go_on() const {
    std::string text;
    for (Rank rank = 0; rank < trial_.processes(); ++rank) {
      if (is_victim(rank)) continue;
      text += fmt::format("\n  rank {} could not go on: {} (it had read after {:.0f} ms: {})", rank,
                          diary(rank).broken, 1e3 * since(diary(rank).named_us), diary(rank).named);
    }
    return text;
  }

  /// What must be alike on all.
  [[nodiscard]] std::optional<std::string> broken_together() {
    int told = 0, survivors = 0;
    std::optional<Rank> first;
    for (Rank rank = 0; rank < trial_.world_size; ++rank) {
      // A rank that was cut off alone returned from calls in which the others were, too.
      if (is_victim(rank) && trial_.fault != Fault::cut_control) continue;
      const Diary& own = diary(rank);
      if (!is_victim(rank)) {
        ++survivors;
        told += own.named_us != 0 ? 1 : 0;
      }
      if (!trial_.finishes) continue;
      if (!first && !is_victim(rank)) first = rank;
      if (auto mixed = first ? mixed_by(rank, *first) : std::nullopt) return mixed;
    }
    for (Rank rank = 0; trial_.finishes && first && rank < *first; ++rank) {
      if (is_victim(rank) && trial_.fault != Fault::cut_control) continue;
      if (auto mixed = mixed_by(rank, *first)) return mixed;
    }
    if (trial_.cuts() && trial_.phase != Phase::leave && told != 0 && told != survivors) {
      return fmt::format("{} of {} ranks were told", told, survivors);
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> mixed_by(Rank rank, Rank witness) const {
    const Diary &own = diary(rank), &other = diary(witness);
    if (!is_victim(rank) && own.calls != other.calls) {
      return fmt::format("rank {} made {} calls, rank {} made {}", rank, own.calls.load(), witness,
                         other.calls.load());
    }
    const int calls = std::min(own.calls, other.calls);
    for (int call = 0; call < calls; ++call) {
      if (own.of_call[call] == other.of_call[call]) continue;
      return fmt::format("call {} is of inputs {:b} on rank {}, of {:b} on rank {}", call,
                         own.of_call[call], rank, other.of_call[call], witness);
    }
    return std::nullopt;
  }

  /// Whether it is one of several that did not come: "waited 8000 ms for ranks 1 and 2 to join".
  [[nodiscard]] static bool is_missed(Rank rank, const std::string& sentence) {
    const std::size_t begin = sentence.find(" for ranks "), end = sentence.find(" to join");
    if (begin == sentence.npos || end == sentence.npos || begin > end) return false;
    std::istringstream words(sentence.substr(begin + 11, end - begin - 11));
    for (std::string word; words >> word;) {
      if (word == fmt::format("{}", rank) || word == fmt::format("{},", rank)) return true;
    }
    return false;
  }

  [[nodiscard]] bool names_a_victim(const std::string& sentence) const {
    const auto says = [&](const std::string& what) {
      return sentence.find(what) != std::string::npos;
    };
    auto victims = trial_.lost();
    if (trial_.fault == Fault::cut_data) {
      if (!says("lost its connection to")) return false;
      if (trial_.phase == Phase::split) return true;  // in the numbers of a part
      victims = {trial_.victim};
    }
    for (const Rank victim : victims) {
      if (says(fmt::format("pid {} ", diary(victim).pid.load()))) return true;
      // Those that exchange are ranks of the world.
      if (sentence.find(fmt::format("nothing from rank {} after", victim)) == 0) return true;
      // By its rank alone: in a part of the world that may be another one, so only of the whole.
      if (trial_.phase != Phase::split && says(fmt::format("rank {}", victim))) return true;
      if (is_missed(victim, sentence)) return true;
    }
    // While the coordinator, or the relay, stands still with its process, a rank can say only whom
    // it waits for.
    const bool has_coordinator = trial_.place == Place::rank_zero && trial_.victim == 0;
    const bool has_larger_one = trial_.grows() && trial_.victim == 0;
    const bool is_above = has_coordinator || has_larger_one || trial_.relayed;
    if (trial_.fault == Fault::stop && is_above &&
        (says("nothing ") || says("for the coordinator to join"))) {
      return true;
    }
    // Whose coordinator was not there (any more) when it came.
    const bool joins = trial_.phase == Phase::join && trial_.place == Place::rank_zero;
    return (joins || has_larger_one) && says("the process that made the id");
  }

  /// Nothing is left of it.
  void end(Result& result) {
    const bool alone = trial_.fault == Fault::lose_launcher && !result.broken;
    const bool comes = trial_.grows() && !is_victim(trial_.world_size) && !alone;
    // Whoever waits at a launcher waits as long as that lives.
    const bool waits = trial_.phase == Phase::take_in && trial_.place == Place::launcher;
    if (comes && !waits && !await([&] { return diary(trial_.world_size).ended.load(); }) &&
        !result.broken) {
      result.broken = "the process that comes hung";
    }
    if (!alone) {
      for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    }
    const auto none_left = [] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      return ::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD;
    };
    if (await(none_left)) {
      if (alone) result.named_s = since(now_us());
      return;
    }
    if (!result.broken) result.broken = "processes are left behind";
    for (Rank rank = 0; rank < trial_.processes(); ++rank) {
      if (diary(rank).pid > 0) ::kill(diary(rank).pid, SIGKILL);
    }
  }

  Trial trial_;
  int descriptor_ = -1;
  SharedMemory shared_;
  std::vector<pid_t> pids_;
  pid_t launcher_ = 0;
  bool struck_ = false;
  std::int64_t struck_us_ = 0;
};

/// What a trial's process tells the one that started it.
struct Told {
  double named_s, usable_s;
  bool is_whole, broken;
  char why[20'000];
};

struct Running {
  int number = 0;
  Told* told = nullptr;
};

Running begin(const Trial& trial, int number, pid_t& pid) {
  void* const memory =
      ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for a trial");
  auto* const told = new (memory) Told{};
  pid = ::fork();
  if (pid < 0) throw std::runtime_error("no process for a trial");
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const Result result = Job(trial).run();
    told->named_s = result.named_s;
    told->usable_s = result.usable_s;
    told->broken = result.broken.has_value();
    if (result.broken) (void)result.broken->copy(told->why, sizeof told->why - 1);
    told->is_whole = true;
    ::_exit(0);
  }
  return {number, told};
}

Result take(const Running& running) {
  const Told& told = *running.told;
  Result result{.broken = {}, .named_s = told.named_s, .usable_s = told.usable_s};
  if (!told.is_whole) {
    result.broken = "the trial itself ended";
  } else if (told.broken) {
    result.broken = told.why;
  }
  ::munmap(running.told, sizeof(Told));
  return result;
}

}  // namespace

void Unmap::operator()(Shared* shared) const { ::munmap(shared, sizeof *shared); }

namespace {

SharedMemory map_shared(int descriptor) {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for a trial");
  return SharedMemory(static_cast<Shared*>(memory));
}

}  // namespace

SharedMemory make_shared_memory(int& descriptor) {
  descriptor = ::memfd_create("chorus-campaign", 0);
  if (descriptor < 0 || ::ftruncate(descriptor, sizeof(Shared)) != 0) {
    throw std::runtime_error("no memory for a trial");
  }
  return map_shared(descriptor);
}

SharedMemory open_shared_memory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) throw std::runtime_error("cannot open " + path);
  SharedMemory shared = map_shared(descriptor);
  ::close(descriptor);
  return shared;
}

Result run(const Trial& trial) {
  pid_t pid = 0;
  const Running running = begin(trial, 0, pid);
  ::waitpid(pid, nullptr, 0);
  return take(running);
}

void run_all(const std::function<Trial(int)>& trial_of, int first, int end, int jobs,
             const std::function<void(int, const Trial&, const Result&)>& ended,
             const std::function<bool()>& goes_on,
             const std::function<bool(const Trial&)>& wanted) {
  std::map<pid_t, Running> running;
  for (int next = first;;) {
    while (next < end && static_cast<int>(running.size()) < jobs && goes_on()) {
      const int number = next++;
      const Trial trial = trial_of(number);
      if (!wanted(trial)) continue;
      pid_t pid = 0;
      const Running begun = begin(trial, number, pid);
      running.emplace(pid, begun);
    }
    if (running.empty()) return;
    const pid_t pid = ::waitpid(-1, nullptr, 0);
    const auto found = running.find(pid);
    if (found == running.end()) continue;
    const Running each = found->second;
    running.erase(found);
    ended(each.number, trial_of(each.number), take(each));
  }
}

}  // namespace chorus::campaign
