#include "perf/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "chorus/error.hpp"
#include "perf/cluster/namespaces.hpp"

namespace chorus::perf {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

volatile std::sig_atomic_t stopped_by = 0;

[[noreturn]] void fail(const std::string& what) {
  throw Error(fmt::format("{}: {}", what, std::strerror(errno)));
}

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  return {Fd(ends[0]), Fd(ends[1])};
}

/// Parent of a process and whether it is a zombie, by /proc/PID/stat; {0, ·} if it is gone.
std::pair<pid_t, bool> parent_of(pid_t pid) {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(stat, line);
  // The second field is the name in parentheses and may contain anything.
  const std::size_t name_end = line.rfind(')');
  if (name_end == line.npos) return {0, false};
  char state = '?';
  int parent = 0;
  if (std::sscanf(line.c_str() + name_end + 1, " %c %d", &state, &parent) != 2) return {0, false};
  return {parent, state == 'Z' || state == 'X'};
}

bool runs(pid_t pid) {
  const auto [parent, zombie] = parent_of(pid);
  return parent != 0 && !zombie;
}

void say_why(int output) {
  const char* why = std::strerror(errno);
  (void)!::write(output, why, std::strlen(why));
}

/// Between fork and exec: nothing but system calls.
[[noreturn]] void become(const Command& command, std::vector<char*>& argv,
                         std::vector<char*>& environment, int output, pid_t parent,
                         const char* directory) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(127);  // it died before we asked to be told
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (command.cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<std::size_t>(command.cpu), &set);
    ::sched_setaffinity(0, sizeof set, &set);
  }
  if (command.namespaces_of >= 0) {
    if (!enter_host(command.namespaces_of, directory)) {
      say_why(output);
      ::_exit(127);
    }
  }
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, 0);
  if (!command.shares_output) {
    ::dup2(output, 1);
    ::dup2(output, 2);
  }
  ::execvpe(argv[0], argv.data(), environment.data());
  say_why(2);
  ::_exit(127);
}

}  // namespace

Scratch::Scratch() {
  const char* tmp = std::getenv("TMPDIR");
  const fs::path base =
      ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : (tmp != nullptr ? tmp : "/tmp");
  std::string name = (base / "chorus-perf-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) fail("cannot make a directory in " + base.string());
  path_ = name;
  auto [wait_end, alive_end] = make_pipe();
  guardian_ = ::fork();
  if (guardian_ < 0) fail("fork");
  if (guardian_ == 0) {
    ::setsid();  // a signal to our process group must not reach it
    ::prctl(PR_SET_NAME, "chorus-perf-end");
    ::dup2(wait_end.get(), 0);
    ::close_range(1, ~0U, 0);
    char byte = 0;
    while (::read(0, &byte, 1) < 0 && errno == EINTR) {
    }
    std::error_code ignored;
    fs::remove_all(path_, ignored);
    ::_exit(0);
  }
  alive_ = std::move(alive_end);
}

Scratch::~Scratch() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  alive_.reset();
  while (::waitpid(guardian_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

Child::Child(const Command& command) {
  auto [read_end, write_end] = make_pipe();
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view key = text.substr(0, text.find('='));
    const bool replaced = std::any_of(command.environment.begin(), command.environment.end(),
                                      [&](const auto& added) { return added.first == key; });
    const bool hidden = std::any_of(command.hidden.begin(), command.hidden.end(),
                                    [&](const auto& prefix) { return key.starts_with(prefix); });
    if (!replaced && !hidden) variables.emplace_back(text);
  }
  for (const auto& [key, value] : command.environment) {
    variables.push_back(fmt::format("{}={}", key, value));
  }
  std::vector<char*> argv, environment;
  for (const std::string& word : command.argv) argv.push_back(const_cast<char*>(word.c_str()));
  for (std::string& variable : variables) environment.push_back(variable.data());
  argv.push_back(nullptr);
  environment.push_back(nullptr);

  const pid_t parent = ::getpid();
  std::error_code unknown;
  const std::string directory = fs::current_path(unknown).string();
  pid_ = ::fork();
  if (pid_ < 0) fail("fork");
  if (pid_ == 0) become(command, argv, environment, write_end.get(), parent, directory.c_str());
  ::fcntl(read_end.get(), F_SETFL, O_NONBLOCK);
  output_ = std::move(read_end);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::move(other.output_)),
      text_(std::move(other.text_)),
      ended_(std::move(other.ended_)) {}

Child::~Child() {
  if (pid_ > 0 && ended().empty()) end_all(family_of(pid_), 1000ms);
}

void Child::drain() {
  constexpr std::size_t kKept = 4096;
  char buffer[4096];
  for (ssize_t got = 0; (got = ::read(output_.get(), buffer, sizeof buffer)) > 0;) {
    text_.append(buffer, static_cast<std::size_t>(got));
    if (text_.size() > kKept) text_.erase(0, text_.size() - kKept);
  }
}

std::string Child::ended() {
  if (!ended_.empty() || pid_ < 0) return ended_;
  int status = 0;
  const pid_t got = ::waitpid(pid_, &status, WNOHANG);
  if (got == 0) return {};
  if (got < 0) {
    ended_ = "reaped";
  } else if (WIFSIGNALED(status)) {
    ended_ = fmt::format("killed by signal {}", WTERMSIG(status));
  } else {
    ended_ = fmt::format("exited with {}", WEXITSTATUS(status));
  }
  return ended_;
}

namespace {

/// The number at the end of "exited with 3", or what a shell makes of "killed by signal 9".
int exit_code_of(const std::string& how) {
  const int number = std::atoi(how.substr(how.rfind(' ') + 1).c_str());
  return how.starts_with("killed") ? 128 + number : number;
}

}  // namespace

int run_to_end(std::vector<Command> commands, const std::vector<std::string>& names) {
  std::vector<Child> children;
  for (Command& command : commands) {
    command.shares_output = true;
    children.emplace_back(command);
  }
  int code = 0;
  for (bool any = true; any;) {
    throw_if_stopped();
    any = false;
    for (std::size_t i = 0; i < children.size(); ++i) {
      const std::string how = children[i].ended();
      any = any || how.empty();
      if (how.empty() || code != 0 || how == "exited with 0") continue;
      code = exit_code_of(how);
      fmt::print(stderr, "chorus-perf: {} {}\n", names[i], how);
    }
    if (any) ::poll(nullptr, 0, 5);
  }
  return code;
}

std::string beside_driver(const std::string& program) {
  const fs::path here = fs::read_symlink("/proc/self/exe").parent_path();
  const fs::path helper = here / CHORUS_PERF_HELPERS / program;
  std::error_code none;
  const bool installed = !fs::exists(here / program, none) && fs::exists(helper, none);
  return (installed ? helper.lexically_normal() : here / program).string();
}

std::vector<pid_t> family_of(pid_t pid) {
  std::multimap<pid_t, pid_t> children;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const pid_t candidate = std::atoi(entry.path().filename().c_str());
    if (candidate <= 0) continue;
    if (const auto [parent, zombie] = parent_of(candidate); parent != 0 && !zombie) {
      children.emplace(parent, candidate);
    }
  }
  std::vector<pid_t> family = {pid};
  for (std::size_t i = 0; i < family.size(); ++i) {
    const auto [begin, end] = children.equal_range(family[i]);
    for (auto child = begin; child != end; ++child) family.push_back(child->second);
  }
  return family;
}

void end_all(const std::vector<pid_t>& pids, std::chrono::milliseconds patience) {
  const auto any_runs = [&] {
    for (const pid_t pid : pids) ::waitpid(pid, nullptr, WNOHANG);  // ours or adopted
    return std::any_of(pids.begin(), pids.end(), runs);
  };
  const auto signal_all = [&](int signal) {
    for (const pid_t pid : pids) {
      if (runs(pid)) ::kill(pid, signal);
    }
  };
  const auto wait_for = [&](std::chrono::milliseconds longest) {
    const auto deadline = std::chrono::steady_clock::now() + longest;
    while (any_runs() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(2ms);
    }
  };
  if (!any_runs()) return;
  signal_all(SIGTERM);
  wait_for(patience);
  signal_all(SIGKILL);
  wait_for(5000ms);
}

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { stopped_by = signal; };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

void throw_if_stopped() {
  if (stopped_by != 0) throw Interrupted{stopped_by};
}

void adopt_orphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1); }

}  // namespace chorus::perf
