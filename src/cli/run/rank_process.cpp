#include "cli/run/rank_process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include "base/files/descriptors.hpp"
#include "chorus/error.hpp"

namespace chorus {
namespace {

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    const int cause = errno;
    throw Error(fmt::format("cannot make a pipe: {}", lacks_descriptors(cause)
                                                          ? why_no_descriptor(cause)
                                                          : std::strerror(cause)));
  }
  return {Fd(ends[0]), Fd(ends[1])};
}

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

[[noreturn]] void cannot_fork() {
  throw Error(fmt::format("cannot fork: {}{}", std::strerror(errno),
                          errno == EAGAIN ? "; raise the limit of processes (ulimit -u)" : ""));
}

/// What the errno of an exec() means for this program, and what to do.
std::string why_no_start(const std::string& program, int cause) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool there = fs::exists(program, error);
  if (program.find('/') == std::string::npos && cause == ENOENT) {
    return there ? fmt::format("it is not in PATH; is it ./{} ?", program) : "it is not in PATH";
  }
  if (fs::is_directory(program, error)) return "it is a directory";
  if (there && cause == ENOENT)
    return "what its first line (#!) names, or its loader, is not there";
  if (there && cause == EACCES) return "Permission denied: chmod +x makes a file executable";
  return std::strerror(cause);
}

/// The guard's life: remembers groups until the launcher is gone. No allocation is safe after
/// fork() in a process with threads; there are none yet.
[[noreturn]] void stand_guard(int fd) {
  ::setsid();  // not hit by the terminal's signals
  for (int signal = 1; signal < 32; ++signal) std::signal(signal, SIG_IGN);
  std::set<pid_t> groups;
  for (pid_t word = 0;;) {
    const ssize_t got = ::read(fd, &word, sizeof word);
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof word) break;
    if (word > 0) groups.insert(word);
    if (word < 0) groups.erase(-word);
  }
  for (const pid_t group : groups) ::kill(-group, SIGKILL);
  ::_exit(0);
}

/// In the child, between fork() and exec(): only what is safe after fork().
[[noreturn]] void become(const RankCommand& command, const Guard& guard, pid_t launcher,
                         char* const* arguments, char* const* environment, int out, int err,
                         int complain_to) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launcher) ::_exit(127);  // it died in between
  guard.watch(::getpid());
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (command.core >= 0) {
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(static_cast<unsigned>(command.core), &core);
    ::sched_setaffinity(0, sizeof core, &core);  // where refused, the rank runs anywhere
  }
  if (!command.inherit_input) {
    const int null = ::open("/dev/null", O_RDONLY);
    if (null >= 0) ::dup2(null, STDIN_FILENO);
  }
  if (out >= 0) ::dup2(out, STDOUT_FILENO);
  if (err >= 0) ::dup2(err, STDERR_FILENO);
  ::execvpe(arguments[0], arguments, environment);
  const int cause = errno;
  [[maybe_unused]] const auto written = ::write(complain_to, &cause, sizeof cause);
  ::_exit(127);
}

}  // namespace

Guard::Guard() {
  auto [read_end, write_end] = make_pipe();
  pid_ = ::fork();
  if (pid_ < 0) cannot_fork();
  if (pid_ == 0) {
    write_end.reset();
    // The launcher's output must not stay open through the guard.
    for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::close(fd);
    stand_guard(read_end.get());
  }
  pipe_ = std::move(write_end);
}

Guard::~Guard() {
  pipe_.reset();
  ::waitpid(pid_, nullptr, 0);
}

void Guard::tell(pid_t word) const {
  [[maybe_unused]] const auto written = ::write(pipe_.get(), &word, sizeof word);
}

RankProcess start(const RankCommand& command, const Guard& guard) {
  const std::vector<char*> arguments = pointers(command.arguments);
  const std::vector<char*> environment = pointers(command.environment);
  auto [complaint, complain_to] = make_pipe();
  std::pair<Fd, Fd> out, err;
  if (command.capture_output) {
    out = make_pipe();
    err = make_pipe();
    for (const Fd* end : {&out.first, &err.first}) ::fcntl(end->get(), F_SETFL, O_NONBLOCK);
  }
  const pid_t launcher = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) cannot_fork();
  if (pid == 0) {
    become(command, guard, launcher, arguments.data(), environment.data(), out.second.get(),
           err.second.get(), complain_to.get());
  }
  ::setpgid(pid, pid);  // here too: whoever is first
  complain_to.reset();
  int cause = 0;
  ssize_t got = 0;
  do {
    got = ::read(complaint.get(), &cause, sizeof cause);
  } while (got < 0 && errno == EINTR);
  if (got == sizeof cause) {
    ::waitpid(pid, nullptr, 0);
    guard.forget(pid);
    throw InputError(fmt::format("cannot start '{}': {}", command.arguments[0],
                                 why_no_start(command.arguments[0], cause)));
  }
  return {pid, std::move(out.first), std::move(err.first)};
}

std::string describe_end(int wait_status) {
  if (!WIFSIGNALED(wait_status)) {
    return fmt::format("exited with status {}", WEXITSTATUS(wait_status));
  }
  return "killed by " + describe_signal(WTERMSIG(wait_status));
}

std::string describe_signal(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return fmt::format("signal {} ({}{})", signal, name == nullptr ? "" : "SIG",
                     name == nullptr ? "no name" : name);
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool changed = std::any_of(changes.begin(), changes.end(),
                                     [&](const auto& change) { return change.first == name; });
    if (!changed) result.emplace_back(text);
  }
  for (const auto& [name, value] : changes) result.push_back(fmt::format("{}={}", name, value));
  return result;
}

}  // namespace chorus
