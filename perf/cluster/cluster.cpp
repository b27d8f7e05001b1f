#include "perf/cluster/cluster.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "base/files/files.hpp"
#include "base/secret.hpp"
#include "perf/report/report.hpp"

namespace chorus::perf {
namespace {

using namespace std::chrono_literals;
namespace fs = std::filesystem;

std::pair<Fd, Fd> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw Error(fmt::format("pipe: {}", std::strerror(errno)));
  return {Fd(ends[0]), Fd(ends[1])};
}

/// As the kernel writes it: 8-4-4-4-12 hex digits.
std::string boot_id_of(const Secret& random) {
  const std::string digits = random.text();
  const std::string_view all = digits;
  return fmt::format("{}-{}-{}-{}-{}", all.substr(0, 8), all.substr(8, 4), all.substr(12, 4),
                     all.substr(16, 4), all.substr(20));
}

/// Reads until the other end closes.
void wait_for_close(int fd) {
  char byte = 0;
  while (::read(fd, &byte, 1) > 0 || errno == EINTR) errno = 0;
}

/// Closes all but `kept` and standard input: what else a guardian inherited must not be kept open,
/// pipes of other guardians among it.
void close_all_but(const std::vector<Fd>& kept) {
  std::vector<unsigned> numbers;
  for (const Fd& fd : kept) numbers.push_back(static_cast<unsigned>(fd.get()));
  std::sort(numbers.begin(), numbers.end());
  unsigned first = 1;
  for (const unsigned number : numbers) {
    if (number > first) ::close_range(first, number - 1, 0);
    first = number + 1;
  }
  ::close_range(first, ~0U, 0);
}

/// What programs read about interfaces becomes that of this namespace, and the kernel's boot that
/// of a machine of its own, by which programs tell whether they may share memory.
bool look_like_a_host(const std::string& name, const std::string& boot_id) {
  return ::sethostname(name.c_str(), name.size()) == 0 &&
         ::mount(nullptr, "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
         (::umount2("/sys", MNT_DETACH) == 0 || errno == EINVAL) &&
         ::mount("sysfs", "/sys", "sysfs", MS_RDONLY, nullptr) == 0 &&
         ::mount(boot_id.c_str(), "/proc/sys/kernel/random/boot_id", nullptr, MS_BIND, nullptr) ==
             0;
}

/// In a namespace of its own, says how that went in one byte (an errno, 0 for well) and sleeps
/// until its parent dies.
[[noreturn]] void keep(int report, const std::string& name, const std::string& boot_id,
                       pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);
  ::setsid();  // a signal to the parent's group must not reach it
  ::prctl(PR_SET_NAME, "chorus-perf-net");
  const bool well =
      ::unshare(CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWNS) == 0 && look_like_a_host(name, boot_id);
  const auto code = static_cast<unsigned char>(well ? 0 : errno);
  (void)!::write(report, &code, 1);
  ::close_range(0, ~0U, 0);
  if (!well) ::_exit(1);
  for (;;) ::pause();
}

struct NamespaceId {
  dev_t device = 0;
  ino_t inode = 0;
  bool operator==(const NamespaceId&) const = default;
};

/// Kills every process whose network namespace is one of `ids`, until there is none.
void empty_namespaces(const std::vector<NamespaceId>& ids) {
  for (int round = 0; round < 500; ++round) {
    bool any = false;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator("/proc", ignored)) {
      const pid_t pid = std::atoi(entry.path().filename().c_str());
      struct stat status {};
      if (pid <= 0 || ::stat((entry.path() / "ns/net").c_str(), &status) != 0) continue;
      if (std::find(ids.begin(), ids.end(), NamespaceId{status.st_dev, status.st_ino}) !=
          ids.end()) {
        any = true;
        ::kill(pid, SIGKILL);
      }
    }
    if (!any) return;
    ::poll(nullptr, 0, 5);
  }
}

/// Runs `program -batch -` in the namespaces of `keeper`.
void run_batch(const char* program, const std::string& batch, pid_t keeper,
               const std::string& directory) {
  if (batch.empty()) return;
  const std::string path = fmt::format("{}/batch", directory);
  write_file(path, batch);
  Command command;
  command.argv = {program, "-batch", path};
  command.namespaces_of = keeper;
  Child child(command);
  std::string how;
  while ((how = child.ended()).empty()) {
    throw_if_stopped();
    ::poll(nullptr, 0, 1);
  }
  child.drain();
  if (how != "exited with 0") {
    throw Error(fmt::format("{} {}: {}(emulated clusters need iproute2 with veth, bridge and tbf)",
                            program, how, child.output()));
  }
}

}  // namespace

Cluster::Cluster(Fabric fabric, const CableOptions& options)
    : fabric_(std::move(fabric)), options_(options) {
  try {
    start_keepers();
    start_guardian();
    lay_cables();
    set_congestion_control();
    write_hosts_file();
    traffic_ = Traffic(*this, options_.traffic);
  } catch (...) {
    tear_down();
    throw;
  }
}

Cluster::~Cluster() { tear_down(); }

void Cluster::start_keepers() {
  const pid_t parent = ::getpid();
  for (std::size_t i = 0; i <= fabric_.hosts.size(); ++i) {
    auto [ready, report] = make_pipe();
    const std::string name = i < fabric_.hosts.size() ? fmt::format("host{}", i) : "switches";
    const std::string boot_id = fmt::format("{}/boot{}", scratch_.path(), i);
    write_file(boot_id, fmt::format("{}\n", boot_id_of(Secret::random())));
    const pid_t pid = ::fork();
    if (pid < 0) throw Error(fmt::format("fork: {}", std::strerror(errno)));
    if (pid == 0) keep(report.get(), name, boot_id, parent);
    keepers_.push_back(pid);
    report.reset();
    unsigned char code = 0;
    ssize_t got = 0;
    while ((got = ::read(ready.get(), &code, 1)) < 0 && errno == EINTR) {
    }
    if (got == 1 && code == 0) continue;
    throw NotAllowed(fmt::format(
        "an emulated cluster needs network namespaces of its own, which this process may not make "
        "({}): run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN",
        got == 1 ? std::strerror(code) : "its keeper died"));
  }
}

void Cluster::start_guardian() {
  // Open descriptors keep the namespaces' numbers from being given to others.
  std::vector<Fd> held;
  std::vector<NamespaceId> ids;
  for (const pid_t keeper : keepers_) {
    held.emplace_back(::open(fmt::format("/proc/{}/ns/net", keeper).c_str(), O_RDONLY | O_CLOEXEC));
    struct stat status {};
    if (!held.back() || ::fstat(held.back().get(), &status) != 0) {
      throw Error(fmt::format("/proc/{}/ns/net: {}", keeper, std::strerror(errno)));
    }
    ids.push_back({status.st_dev, status.st_ino});
  }
  // If a keeper had not left this namespace, emptying its namespace would end everything.
  struct stat own {};
  if (::stat("/proc/self/ns/net", &own) != 0 ||
      std::find(ids.begin(), ids.end(), NamespaceId{own.st_dev, own.st_ino}) != ids.end()) {
    throw Error("a keeper shares this machine's network: nothing was set up");
  }
  auto [wait_end, alive_end] = make_pipe();
  guardian_ = ::fork();
  if (guardian_ < 0) throw Error(fmt::format("fork: {}", std::strerror(errno)));
  if (guardian_ == 0) {
    ::setsid();
    ::prctl(PR_SET_NAME, "chorus-perf-net");
    alive_end.reset();
    ::dup2(wait_end.get(), 0);
    close_all_but(held);
    wait_for_close(0);
    empty_namespaces(ids);
    ::_exit(0);
  }
  alive_ = std::move(alive_end);
}

void Cluster::lay_cables() {
  const std::vector<int> pids(keepers_.begin(), keepers_.end());
  const Batches batches = batches_for(fabric_, pids, options_);
  run_batch("ip", batches.links, keepers_.back(), scratch_.path());
  for (std::size_t h = 0; h < fabric_.hosts.size(); ++h) {
    run_batch("ip", batches.addresses[h], keepers_[h], scratch_.path());
    run_batch("tc", batches.host_rates[h], keepers_[h], scratch_.path());
  }
  run_batch("tc", batches.switch_rates, keepers_.back(), scratch_.path());
}

void Cluster::set_congestion_control() {
  if (options_.congestion.empty()) return;
  if (options_.congestion.find_first_not_of("abcdefghijklmnopqrstuvwxyz_0123456789") !=
      std::string::npos) {
    throw InputError(
        fmt::format("\"{}\" is not a congestion control algorithm", options_.congestion));
  }
  for (std::size_t h = 0; h < fabric_.hosts.size(); ++h) {
    Command command;
    command.argv = {"sh", "-c",
                    "echo " + options_.congestion + " > /proc/sys/net/ipv4/tcp_congestion_control"};
    command.namespaces_of = keepers_[h];
    Child child(command);
    while (child.ended().empty()) ::poll(nullptr, 0, 1);
    if (child.ended() != "exited with 0") {
      throw InputError(fmt::format(
          "congestion control \"{}\" is not to be had; see tcp_allowed_congestion_control",
          options_.congestion));
    }
  }
}

void Cluster::write_hosts_file() {
  std::string text;
  for (std::size_t h = 0; h < fabric_.hosts.size(); ++h) {
    const std::string directory = fmt::format("{}/host{}", scratch_.path(), h);
    fs::create_directories(directory);
    text += fmt::format("host{} {} {} {}\n", h, fabric_.hosts[h].address, keepers_[h], directory);
  }
  hosts_file_ = scratch_.path() + "/hosts";
  write_file(hosts_file_, text);
}

void Cluster::tear_down() noexcept {
  traffic_ = {};
  alive_.reset();  // the guardian ends all that runs inside, the keepers too
  if (guardian_ > 0) {
    while (::waitpid(guardian_, nullptr, 0) < 0 && errno == EINTR) {
    }
    guardian_ = -1;
  }
  for (const pid_t keeper : keepers_) {
    ::kill(keeper, SIGKILL);
    while (::waitpid(keeper, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  keepers_.clear();
}

}  // namespace chorus::perf
