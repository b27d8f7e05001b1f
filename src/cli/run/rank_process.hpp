// Processes of `chorus run`: one rank each, none of which outlives the launcher.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"

namespace chorus {

/// Kills what is left of the ranks when the launcher ends, however it ends: a small process that
/// waits for the other end of a pipe to close.
class Guard {
 public:
  Guard();  ///< Throws Error. To be made before any thread.
  ~Guard();
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

  /// For the child itself, before exec(): no moment is left in which nobody knows of it.
  void watch(pid_t group) const { tell(group); }
  void forget(pid_t group) const { tell(-group); }

 private:
  void tell(pid_t word) const;
  Fd pipe_;
  pid_t pid_ = -1;
};

/// What a rank's process is started with.
struct RankCommand {
  std::vector<std::string> arguments;    ///< [0] is the program, searched in PATH
  std::vector<std::string> environment;  ///< "NAME=value", all of it
  bool capture_output = false;
  bool inherit_input = false;  ///< otherwise /dev/null
  int core = -1;               ///< the only one it may run on, if >= 0
};

struct RankProcess {
  pid_t pid = -1;  ///< also its process group
  Fd out, err;     ///< non-blocking, if captured
};

/// Starts a process in a process group of its own, which gets SIGKILL when the launcher's thread
/// ends and is watched by `guard`. Throws InputError if the program cannot be started.
RankProcess start(const RankCommand& command, const Guard& guard);

/// "killed by signal 9 (SIGKILL)", "exited with status 3"
[[nodiscard]] std::string describe_end(int wait_status);

/// "signal 9 (SIGKILL)"
[[nodiscard]] std::string describe_signal(int signal);

/// This process's environment with `changes` made to it.
[[nodiscard]] std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& changes);

}  // namespace chorus
