// One library's workers, started once and given one block after another.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "perf/job.hpp"
#include "perf/process.hpp"
#include "perf/wire.hpp"

namespace chorus::perf {

/// How to start the workers of one library: one launcher that starts all ranks, or one command for
/// each rank. The driver's own arguments are appended to each.
struct Launch {
  std::vector<Command> commands;
};

/// The workers of a job, from their start to their end.
///
/// Between blocks every worker sleeps in a read from the driver, so that several sessions can exist
/// at once and be measured in turn. Whatever goes wrong with the workers (a launcher that fails, a
/// rank that dies, hangs or lies) is thrown as chorus::Error, in one sentence; the session is over
/// then, and nothing of it runs any more.
class Session {
 public:
  using Seconds = std::chrono::duration<double>;

  /// Starts the workers in `directory`, which is this session's own, and waits until all are ready.
  Session(const Launch& launch, std::string directory, int world_size, Seconds deadline);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Asks the workers to leave, and ends those that have not after two seconds.
  ~Session();

  /// Every rank's sample of one block, by rank.
  [[nodiscard]] std::vector<Sample> run(const Job& job, Seconds deadline);

  [[nodiscard]] const std::string& version() const { return version_; }
  /// Launchers, helpers and workers.
  [[nodiscard]] std::vector<pid_t> processes();

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  struct Peer {
    Fd socket;
    pid_t pid = -1;
    int rank = -1;
    FrameReader reader;
  };

  void start(const Launch& launch);
  void accept_one();
  void greet(Deadline deadline);
  /// Waits for something to read; throws when the deadline passes or a launcher ends.
  void wait_for_input(Deadline deadline, std::string_view doing);
  void read_from(Peer& peer);
  void check_children();
  [[nodiscard]] std::string last_words();
  void end(std::chrono::milliseconds patience) noexcept;

  std::string directory_;
  int world_size_;
  Fd listener_;
  std::vector<Child> children_;
  std::vector<Peer> peers_;
  std::string version_;
};

}  // namespace chorus::perf
