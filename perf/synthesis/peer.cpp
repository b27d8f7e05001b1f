// Runs msccl-tools, which is measured and no part of Chorus.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <sstream>
#include <thread>
#include <utility>

#include "chorus/error.hpp"
#include "perf/cpu_time.hpp"
#include "perf/synthesis/rows.hpp"

namespace chorus::perf {
namespace {

/// In the child: never returns.
[[noreturn]] void become(const std::vector<std::string>& words, double most_seconds) {
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  // The kernel counts the CPU seconds: SIGXCPU ends it.
  const auto limit = static_cast<rlim_t>(most_seconds) + 1;
  const rlimit cpu{limit, limit + 5};
  setrlimit(RLIMIT_CPU, &cpu);
  const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
  dup2(nothing, STDIN_FILENO);
  dup2(nothing, STDOUT_FILENO);
  dup2(nothing, STDERR_FILENO);
  execvp(argv[0], argv.data());
  _exit(127);
}

struct Run {
  double seconds = 0;
  int status = 0;
};

Run run_to_its_end(const std::vector<std::string>& words, double most_seconds) {
  const pid_t child = fork();
  if (child < 0) throw InputError("cannot start a process for msccl-tools; free some memory");
  if (child == 0) become(words, most_seconds);
  // Waiting is not computing: on an oversubscribed machine CPU time is slow to come, so the clock
  // is given twenty times as long.
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(20 * most_seconds + 10);
  Run run;
  rusage usage{};
  while (true) {
    const pid_t ended = wait4(child, &run.status, WNOHANG, &usage);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) throw InputError("lost sight of msccl-tools; run it again");
    if (std::chrono::steady_clock::now() >= deadline) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  run.seconds = seconds_of(usage);
  return run;
}

}  // namespace

SynthesisPeer::SynthesisPeer(std::string directory, std::string python, double most_seconds)
    : directory_(std::move(directory)), python_(std::move(python)), most_seconds_(most_seconds) {
  if (directory_.empty()) return;
  const Run run = run_to_its_end(
      {"env", "PYTHONPATH=" + directory_, python_, "-m", "msccl", "--help"}, most_seconds_);
  if (!WIFEXITED(run.status) || WEXITSTATUS(run.status) != 0) {
    throw InputError(fmt::format(
        "'{} -m msccl' does not run with {}; install what it needs (Debian: python3-z3 "
        "python3-argcomplete python3-lxml python3-humanfriendly python3-tabulate python3-igraph)",
        python_, directory_));
  }
  start_up_s_ = run.seconds;
}

std::optional<SynthesisPeer::Answer> SynthesisPeer::run(const std::string& arguments) {
  if (!present()) return std::nullopt;
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const auto& known) { return known.first == arguments; });
  if (found != known_.end()) return found->second;
  std::vector<std::string> words = {"env", "PYTHONPATH=" + directory_, python_, "-m", "msccl"};
  std::istringstream split(arguments);
  for (std::string word; split >> word;) words.push_back(word);
  const Run run = run_to_its_end(words, most_seconds_);
  const bool timed_out = WIFSIGNALED(run.status);
  if (!timed_out && WEXITSTATUS(run.status) != 0) {
    throw InputError(fmt::format("msccl-tools failed at '{}'; try it by hand", arguments));
  }
  known_.emplace_back(arguments, Answer{std::max(0.0, run.seconds - start_up_s_), timed_out});
  return known_.back().second;
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage);
}

}  // namespace chorus::perf
