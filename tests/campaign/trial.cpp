#include "trial.hpp"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "chorus/error.hpp"
#include "runtime/control.hpp"

namespace chorus::campaign {
namespace {

constexpr int kMaxRanks = 8;
constexpr int kHung_s = 30;
/// A stopped rank is named when a call has waited this long for it.
constexpr int kTimeout_ms = 1'500;

std::int64_t now_us() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// What a rank lets the trial know, in memory that both see.
struct Diary {
  std::atomic<bool> in_phase, ended;
  std::atomic<std::int64_t> named_us, usable_us;
  char named[1'000], broken[1'000];

  void write(char (&where)[1'000], const std::string& text) {
    const std::size_t size = text.copy(where, sizeof where - 1);
    where[size] = '\0';
  }
};
struct Shared {
  Diary ranks[kMaxRanks];
  std::atomic<bool> enough;  ///< calls that nothing disturbs may end
  char id[256];
  std::atomic<bool> id_made;
};

struct Unmap {
  void operator()(Shared* shared) const { ::munmap(shared, sizeof *shared); }
};
using SharedMemory = std::unique_ptr<Shared, Unmap>;

SharedMemory share() {
  void* const memory =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for a trial");
  return SharedMemory(new (memory) Shared{});
}

template <typename Done>
bool await(Done done) {
  const std::int64_t until = now_us() + kHung_s * 1'000'000LL;
  while (!done()) {
    if (now_us() > until) return false;
    ::usleep(200);
  }
  return true;
}

std::vector<Rank> victims_of(const Trial& trial) {
  if (trial.fault == Fault::lose_coordinator) return {};
  if (trial.fault == Fault::kill_two) return {trial.victim, trial.second};
  return {trial.victim};
}

// A rank.

class Life {
 public:
  Life(const Trial& trial, Shared& shared, Rank rank)
      : trial_(trial), shared_(shared), rank_(rank), own_(shared.ranks[rank]) {}

  void live() {
    try {
      Communicator world = join();
      if (!fails([&] { work(world); })) return;
      go_on(world);
    } catch (const std::exception& error) {
      if (trial_.phase == Phase::join && own_.named_us == 0) return name(error.what());
      own_.write(own_.broken, error.what());
    }
  }

 private:
  Communicator join() {
    Options options;
    options.transports = trial_.transports;
    options.flight_dir.clear();
    options.log_level = "error";
    options.slot_bytes = 4096;
    options.timeout_ms = trial_.fault == Fault::stop ? kTimeout_ms : 20'000;
    // Nobody but a launcher knows of a rank that dies before it has come, and a stopped one does
    // not come: only time tells.
    const bool only_time = trial_.phase == Phase::join || trial_.fault == Fault::stop;
    options.join_timeout_ms = only_time ? 3'000 : 20'000;
    if (trial_.phase == Phase::join) own_.in_phase = true;
    return Communicator::join(UniqueId{shared_.id}, rank_, trial_.world_size, options);
  }

  /// Whether it ends with the failure that was to be.
  template <typename Work>
  bool fails(Work work) {
    try {
      work();
      return false;
    } catch (const Error& error) {
      name(error.what());
      return true;
    }
  }

  void name(const std::string& sentence) {
    own_.write(own_.named, sentence);
    own_.named_us = now_us();
  }

  void reduce(Communicator& comm) {
    std::vector<std::int64_t> sum(1'000, std::int64_t{1} << comm.rank());
    comm.all_reduce<std::int64_t>(sum);
    if (sum.back() != (std::int64_t{1} << comm.world_size()) - 1) {
      throw std::runtime_error(fmt::format("a wrong sum: {}", sum.back()));
    }
  }

  /// The flag of one rank ends the calls of all alike.
  bool enough(Communicator& comm) {
    std::vector<int> flags{comm.rank() == 0 && shared_.enough ? 1 : 0};
    comm.all_reduce<int>(flags);
    return flags[0] != 0;
  }

  void work(Communicator& world) {
    reduce(world);
    if (trial_.phase == Phase::leave) {
      own_.in_phase = true;
      return;
    }
    if (trial_.phase == Phase::shrink) {
      Communicator smaller = world.shrink(std::vector<Rank>{});
      own_.in_phase = true;
      return work_on(smaller);
    }
    own_.in_phase = true;
    work_on(world);
  }

  void work_on(Communicator& comm) {
    for (int i = 0; !enough(comm); ++i) {
      reduce(comm);
      if (trial_.phase == Phase::shrink) (void)comm.shrink(std::vector<Rank>{});
      if (trial_.phase != Phase::split) continue;
      auto part = comm.split((comm.rank() + i) % 2);
      reduce(*part);
    }
    if (trial_.fault != Fault::lose_coordinator) return;
    // What the coordinator is needed for.
    auto part = comm.split(0);
    reduce(*part);
    own_.usable_us = now_us();
  }

  void go_on(Communicator& world) {
    if (trial_.phase == Phase::join || trial_.phase == Phase::leave) return;
    Communicator smaller = world.shrink(victims_of(trial_));
    reduce(smaller);
    own_.usable_us = now_us();
    auto part = smaller.split(smaller.rank() % 2);
    reduce(*part);
  }

  const Trial& trial_;
  Shared& shared_;
  Rank rank_;
  Diary& own_;
};

// The trial.

class Job {
 public:
  explicit Job(const Trial& trial) : trial_(trial), shared_(share()) {}

  Result run() {
    for (Rank rank = 0; rank < trial_.world_size; ++rank) start(rank);
    std::unique_ptr<Coordinator> coordinator;  // after the last fork
    if (trial_.place == Place::elsewhere) {
      coordinator = std::make_unique<Coordinator>(trial_.world_size, "", 0, Secret::random());
      tell_id(*shared_, coordinator->id());
    }
    Result result;
    if (!await([&] { return all([](const Diary& own) { return own.in_phase || own.ended; }); })) {
      result.broken = "the ranks did not come so far";
    } else {
      ::usleep(static_cast<useconds_t>(trial_.after_us));
      strike(coordinator);
      judge(result);
    }
    for (const pid_t pid : pids_) ::kill(pid, SIGKILL);
    for (const pid_t pid : pids_) ::waitpid(pid, nullptr, 0);
    return result;
  }

 private:
  static void tell_id(Shared& shared, const std::string& id) {
    std::strncpy(shared.id, id.c_str(), sizeof shared.id - 1);
    shared.id_made = true;
  }

  void start(Rank rank) {
    const pid_t pid = ::fork();
    if (pid != 0) {
      pids_.push_back(pid);
      return;
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // Ranks whose end is disturbed log it; here it is no news.
    set_log_sink([](LogLevel, std::string_view, std::string_view) {});
    if (rank == 0 && trial_.place == Place::rank_zero) {
      tell_id(*shared_, UniqueId::make(trial_.world_size).text);
    }
    if (await([&] { return shared_->id_made.load(); })) Life(trial_, *shared_, rank).live();
    shared_->ranks[rank].ended = true;
    ::_exit(0);
  }

  template <typename Holds>
  bool all(Holds holds) {
    for (Rank rank = 0; rank < trial_.world_size; ++rank) {
      if (!is_victim(rank) && !holds(shared_->ranks[rank])) return false;
    }
    return true;
  }

  [[nodiscard]] bool is_victim(Rank rank) const {
    const auto victims = victims_of(trial_);
    return struck_ && std::find(victims.begin(), victims.end(), rank) != victims.end();
  }

  void strike(std::unique_ptr<Coordinator>& coordinator) {
    struck_ = true;
    struck_us_ = now_us();
    const auto pid_of = [&](Rank rank) { return pids_[static_cast<std::size_t>(rank)]; };
    switch (trial_.fault) {
      case Fault::lose_coordinator:
        coordinator.reset();
        ::usleep(100'000);  // calls during the succession, and after it
        shared_->enough = true;
        return;
      case Fault::stop:
        ::kill(pid_of(trial_.victim), SIGSTOP);
        return;
      case Fault::kill_two:
        ::kill(pid_of(trial_.victim), SIGKILL);
        ::usleep(static_cast<useconds_t>(trial_.after_us / 4));
        ::kill(pid_of(trial_.second), SIGKILL);
        return;
      case Fault::kill:
        ::kill(pid_of(trial_.victim), SIGKILL);
        return;
    }
  }

  void judge(Result& result) {
    const bool stops = trial_.fault == Fault::stop;
    // With a stopped rank there is nobody to go on without: it was only late.
    const auto over = [&](const Diary& own) {
      return stops ? own.named_us != 0 || own.ended : own.ended.load();
    };
    if (!await([&] { return all(over); })) result.broken = "a rank hung";
    for (Rank rank = 0; rank < trial_.world_size; ++rank) {
      if (is_victim(rank)) continue;
      const Diary& own = shared_->ranks[rank];
      if (!result.broken) result.broken = broken_by(rank, own);
      if (own.named_us != 0) result.named_s = std::max(result.named_s, since(own.named_us));
      if (own.usable_us != 0) result.usable_s = std::max(result.usable_s, since(own.usable_us));
    }
  }

  [[nodiscard]] double since(std::int64_t at_us) const {
    return static_cast<double>(at_us - struck_us_) * 1e-6;
  }

  std::optional<std::string> broken_by(Rank rank, const Diary& own) const {
    const auto say = [&](const std::string& what) { return fmt::format("rank {} {}", rank, what); };
    const std::string named = own.named;
    if (own.broken[0] != '\0' && trial_.fault != Fault::stop) {
      return say(fmt::format("could not go on: {} (it had read: {})", own.broken, named));
    }
    if (trial_.fault == Fault::lose_coordinator) {
      if (own.named_us != 0) return say("names a failure, though no rank failed: " + named);
      if (own.usable_us == 0) return say("did not go on");
      return std::nullopt;
    }
    // A rank that is struck while it leaves may have left.
    if (own.named_us == 0) {
      return trial_.phase == Phase::leave ? std::nullopt : std::optional(say("was told nothing"));
    }
    if (!names_a_victim(named)) return say("names somebody else: " + named);
    return std::nullopt;
  }

  [[nodiscard]] bool names_a_victim(const std::string& sentence) const {
    for (const Rank victim : victims_of(trial_)) {
      const auto pid = pids_[static_cast<std::size_t>(victim)];
      if (sentence.find(fmt::format("pid {} ", pid)) != std::string::npos) return true;
      // Those that exchange are ranks of the world.
      if (sentence.find(fmt::format("nothing from rank {} after", victim)) == 0) return true;
      // By its rank alone: in a part of the world that may be another one, so only of the whole.
      if (trial_.phase != Phase::split &&
          sentence.find(fmt::format("rank {}", victim)) != std::string::npos) {
        return true;
      }
    }
    // While the coordinator stands still with its process, a rank can say only whom it waits for.
    if (trial_.fault == Fault::stop && trial_.place == Place::rank_zero && trial_.victim == 0) {
      return sentence.find("nothing ") != std::string::npos;
    }
    // Whose coordinator was not there (any more) when it came.
    return trial_.phase == Phase::join && trial_.place == Place::rank_zero &&
           sentence.find("the process that made the id") != std::string::npos;
  }

  Trial trial_;
  SharedMemory shared_;
  std::vector<pid_t> pids_;
  bool struck_ = false;
  std::int64_t struck_us_ = 0;
};

}  // namespace

std::string Trial::text() const {
  static constexpr const char* kPhases[] = {"join", "collectives", "split", "shrink", "leave"};
  static constexpr const char* kFaults[] = {"killed", "killed, then another", "stopped", "lost"};
  const std::string who = fault == Fault::lose_coordinator ? "the coordinator"
                          : fault == Fault::kill_two
                              ? fmt::format("ranks {} and {}", victim, second)
                              : fmt::format("rank {}", victim);
  return fmt::format("{} of {} over {}, coordinator {}: {} in {} after {} us", who, world_size,
                     transports, place == Place::rank_zero ? "in rank 0" : "elsewhere",
                     kFaults[static_cast<int>(fault)], kPhases[static_cast<int>(phase)], after_us);
}

Trial draw(std::uint64_t seed, int number) {
  std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(number));
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
  };
  Trial trial;
  trial.world_size = 2 + below(5);
  trial.transports = below(2) == 0 ? "shm" : "tcp";
  trial.phase = static_cast<Phase>(below(5));
  trial.place = below(3) == 0 ? Place::elsewhere : Place::rank_zero;
  // Half of them hit the process that holds the coordinator, or would under mpirun.
  trial.victim = below(2) == 0 ? 0 : below(trial.world_size);
  trial.second = (trial.victim + 1 + below(trial.world_size - 1)) % trial.world_size;
  trial.after_us = below(30'000);
  const int kind = below(10);
  const bool works = trial.phase != Phase::join && trial.phase != Phase::leave;
  if (works && kind < 2 && trial.world_size > 3) trial.fault = Fault::kill_two;
  if (works && kind == 2) trial.fault = Fault::stop;
  if (works && trial.place == Place::elsewhere && kind >= 6) trial.fault = Fault::lose_coordinator;
  return trial;
}

// In a process of its own, so that no thread of one trial is there when the next one forks.
Result run(const Trial& trial) {
  struct Told {
    Result result;
    bool broken;
    char why[2'000];
  };
  void* const memory =
      ::mmap(nullptr, sizeof(Told), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for a trial");
  auto* const told = new (memory) Told{};
  const pid_t pid = ::fork();
  if (pid == 0) {
    Result result = Job(trial).run();
    told->result.named_s = result.named_s;
    told->result.usable_s = result.usable_s;
    told->broken = result.broken.has_value();
    if (result.broken) (void)result.broken->copy(told->why, sizeof told->why - 1);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  Result result{.broken = {}, .named_s = told->result.named_s, .usable_s = told->result.usable_s};
  if (status != 0) {
    result.broken = "the trial itself ended";
  } else if (told->broken) {
    result.broken = told->why;
  }
  ::munmap(memory, sizeof(Told));
  return result;
}

}  // namespace chorus::campaign
