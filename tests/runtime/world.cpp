#include "world.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "base/files/fd.hpp"
#include "runtime/control/control.hpp"

namespace chorus::testing {
namespace {

using Body = std::function<void(const UniqueId&, Rank)>;

std::string outcome_of(const Body& body, const UniqueId& id, Rank rank) {
  try {
    body(id, rank);
    return {};
  } catch (const std::exception& error) {
    return error.what();
  }
}

Outcomes run_threads(const World& world, const Body& body) {
  const Coordinator coordinator(world.size, "", 0, Secret::random());
  const UniqueId id{coordinator.id()};
  Outcomes outcomes(static_cast<std::size_t>(world.size));
  std::vector<std::thread> threads;
  for (Rank r = 0; r < world.size; ++r) {
    threads.emplace_back(
        [&, r] { outcomes[static_cast<std::size_t>(r)] = outcome_of(body, id, r); });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

struct Pipe {
  Fd read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe(ends) != 0) throw std::runtime_error("pipe failed");
  return {Fd(ends[0]), Fd(ends[1])};
}

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<std::size_t>(n));
  }
  return text;
}

[[noreturn]] void be_rank(const Body& body, Rank rank, Pipe& id_pipe, Pipe& outcome_pipe) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  id_pipe.write.reset();
  outcome_pipe.read.reset();
  const UniqueId id{read_all(id_pipe.read.get())};
  const std::string outcome = outcome_of(body, id, rank);
  [[maybe_unused]] const auto written =
      ::write(outcome_pipe.write.get(), outcome.data(), outcome.size());
  ::_exit(::testing::Test::HasFailure() ? 3 : 0);
}

constexpr int kHung = -1;

// Exit statuses as waitpid() gives them; kHung for those that had to be killed.
std::vector<int> wait_for_all(const World& world, const std::vector<pid_t>& pids,
                              Coordinator* coordinator) {
  using Clock = std::chrono::steady_clock;
  const auto deadline = Clock::now() + std::chrono::seconds(world.timeout_s);
  std::vector<int> statuses(pids.size());
  std::vector<bool> gone(pids.size());
  if (world.ended != nullptr) world.ended->assign(pids.size(), {});
  for (std::size_t left = pids.size(); left > 0;) {
    const bool late = Clock::now() > deadline;
    for (std::size_t r = 0; r < pids.size(); ++r) {
      if (gone[r]) continue;
      if (late) ::kill(pids[r], SIGKILL);
      int status = 0;
      if (::waitpid(pids[r], &status, late ? 0 : WNOHANG) == 0) continue;
      if (world.ended != nullptr) (*world.ended)[r] = Clock::now();
      statuses[r] = late ? kHung : status;
      if (coordinator != nullptr && WIFSIGNALED(status)) {
        coordinator->report_death(static_cast<Rank>(r),
                                  fmt::format("killed by signal {}", WTERMSIG(status)));
      }
      gone[r] = true;
      --left;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return statuses;
}

// The ranks are forked before this process starts the coordinator's thread.
Outcomes run_processes(const World& world, const Body& body) {
  std::vector<pid_t> pids;
  std::vector<Pipe> id_pipes, outcome_pipes;
  for (Rank r = 0; r < world.size; ++r) {
    id_pipes.push_back(make_pipe());
    outcome_pipes.push_back(make_pipe());
    const pid_t pid = ::fork();
    if (pid == 0) {
      // Copies of the other ranks' write ends would keep their pipes open.
      for (Rank other = 0; other < r; ++other) id_pipes[static_cast<std::size_t>(other)] = {};
      be_rank(body, r, id_pipes.back(), outcome_pipes.back());
    }
    outcome_pipes.back().write.reset();
    pids.push_back(pid);
  }
  Coordinator coordinator(world.size, "", 0, Secret::random());
  const UniqueId id{coordinator.id()};
  for (Pipe& pipe : id_pipes) {
    [[maybe_unused]] const auto written = ::write(pipe.write.get(), id.text.data(), id.text.size());
    pipe.write.reset();
  }
  if (world.meanwhile) world.meanwhile(pids);
  const std::vector<int> statuses =
      wait_for_all(world, pids, world.launcher ? &coordinator : nullptr);
  Outcomes outcomes;
  for (std::size_t r = 0; r < pids.size(); ++r) {
    std::string outcome = read_all(outcome_pipes[r].read.get());
    const int status = statuses[r];
    if (status == kHung) {
      outcome = fmt::format("hung for {} s {}", world.timeout_s, outcome);
    } else if (WIFSIGNALED(status)) {
      outcome = fmt::format("killed by signal {} {}", WTERMSIG(status), outcome);
    } else if (WEXITSTATUS(status) != 0) {
      outcome = fmt::format("exit status {} {}", WEXITSTATUS(status), outcome);
    }
    outcomes.push_back(outcome);
  }
  return outcomes;
}

}  // namespace

World threads(int size, const std::string& transports) {
  World world{.size = size};
  world.options.transports = transports;
  world.options.timeout_ms = 30'000;
  world.options.flight_dir.clear();
  world.options.slot_bytes = 4096;
  return world;
}

Outcomes run_ranks(const World& world, const Body& body) {
  return world.ranks == Ranks::threads ? run_threads(world, body) : run_processes(world, body);
}

Outcomes run_world(const World& world, const std::function<void(Communicator&)>& body) {
  return run_ranks(world, [&](const UniqueId& id, Rank rank) {
    auto comm = Communicator::join(id, rank, world.size, world.options);
    body(comm);
  });
}

void expect_all_well(const Outcomes& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    EXPECT_EQ(outcomes[r], "") << "rank " << r;
  }
}

}  // namespace chorus::testing
