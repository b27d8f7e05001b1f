// Child processes that cannot outlive the measurement.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"

namespace chorus::perf {

struct Command {
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;  ///< added to our own
  int cpu = -1;  ///< the one CPU it may use, or -1 for all
  /// A process whose network, host name and mounts it shares (Cluster::keeper), or -1 for ours.
  pid_t namespaces_of = -1;
  bool shares_output = false;  ///< writes where we write, not into a pipe for us
  /// Of our own variables those that begin with one of these are not passed on.
  std::vector<std::string> hidden = {};
};

/// A directory of our own for sockets, pages and the peers' session files, in /dev/shm where there
/// is one. It disappears with this object, and also when this process is killed: a guardian
/// process, which does nothing but wait for our end, removes it then.
class Scratch {
 public:
  /// Throws chorus::Error.
  Scratch();
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  Fd alive_;  // the guardian reads the other end of this pipe
  pid_t guardian_ = -1;
};

/// One child, leader of its own process group, killed with us. Its output comes through a pipe.
class Child {
 public:
  /// Throws chorus::Error if it cannot be started.
  explicit Child(const Command& command);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  /// Kills it and everything it started, if it still runs.
  ~Child();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] int output_fd() const { return output_.get(); }
  /// Takes what it wrote since, without waiting; only the last 4 KiB are kept.
  void drain();
  [[nodiscard]] const std::string& output() const { return text_; }
  /// Without waiting: how it ended ("exited with 1", "killed by signal 9"), empty if it runs.
  [[nodiscard]] std::string ended();

 private:
  pid_t pid_ = -1;
  Fd output_;
  std::string text_;
  std::string ended_;
};

/// Runs all commands at once, where we write, until each has ended. Exit code of the first that
/// failed, whose name is told on stderr; `names` has one per command.
[[nodiscard]] int run_to_end(std::vector<Command> commands, const std::vector<std::string>& names);

/// The path of a program that lies beside this one, or where the helpers of this one are installed.
[[nodiscard]] std::string beside_driver(const std::string& program);

/// `pid` and everything it started that still runs.
[[nodiscard]] std::vector<pid_t> family_of(pid_t pid);

/// Asks all of `pids` to end, and kills those that still run after `patience`. Returns when none
/// of them runs.
void end_all(const std::vector<pid_t>& pids, std::chrono::milliseconds patience);

/// Thrown by throw_if_stopped(). No child of chorus::Error: nobody may take it for a failed peer.
struct Interrupted {
  int signal = 0;
};
/// From now on SIGINT, SIGTERM and SIGHUP are only noted.
void stop_on_signals();
/// Throws Interrupted if one of them has come. Called wherever we wait, so that every destructor
/// runs and nothing is left behind.
void throw_if_stopped();

/// Makes this process the parent of orphaned grandchildren, so that it can reap them.
void adopt_orphans();

}  // namespace chorus::perf
