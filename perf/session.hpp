// One library's workers, started once and given one block after another.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
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

/// The processes of a session, wherever they run.
class Workers {
 public:
  virtual ~Workers() = default;
  /// How one of them ended ("exited with 1: its last words"); empty while all run.
  [[nodiscard]] virtual std::string failure() = 0;
  /// ": what one of them said last", or empty.
  [[nodiscard]] virtual std::string last_words() = 0;
  [[nodiscard]] virtual bool all_ended() = 0;
  /// Those of this machine.
  [[nodiscard]] virtual std::vector<pid_t> processes() = 0;
  /// Asks them to end, and kills those that still run after `patience`.
  virtual void end(std::chrono::milliseconds patience) = 0;
};

/// Children of this process.
[[nodiscard]] std::unique_ptr<Workers> local_workers(const std::vector<Command>& commands);

/// ": the first line or so of what a process said", or empty.
[[nodiscard]] std::string words_of(const std::string& output);

/// What makes workers that run on several hosts one session.
struct AcrossHosts {
  std::string address;             ///< of this process, for the others
  std::string token;               ///< shown by every worker
  std::vector<Welcome> welcomes;   ///< by rank
  std::vector<std::string> hosts;  ///< by rank: host_key() of where it has to run
  /// Starts the workers, each with the arguments given.
  std::function<std::unique_ptr<Workers>(const std::vector<std::string>& arguments)> start;
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
  /// The same on the hosts of a job; workers come over the network.
  Session(const AcrossHosts& hosts, std::string directory, int world_size, Seconds deadline);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  /// Asks the workers to leave, and ends those that have not after two seconds.
  ~Session();

  /// Every rank's sample of one block, by rank.
  [[nodiscard]] std::vector<Sample> run(const Job& job, Seconds deadline);

  [[nodiscard]] const std::string& version() const { return version_; }
  /// Launchers, helpers and workers, as far as they run on this machine.
  [[nodiscard]] std::vector<pid_t> processes();
  /// The workers, by rank.
  [[nodiscard]] std::vector<pid_t> pids() const;

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  struct Peer {
    Fd socket;
    pid_t pid = -1;
    int rank = -1;
    bool admitted = false;
    std::string host;
    FrameReader reader;
    std::string waits_for;  ///< a value that nobody has set yet
  };

  void accept_one();
  void greet(Deadline deadline);
  void greeted(Peer& peer, const Reply& reply);
  void welcome(const AcrossHosts& hosts);
  /// What a peer says before it is ready.
  void take(Peer& peer, const std::string& frame, int& ready);
  void answer_waiting();
  void drop_unauthenticated();
  /// Waits for something to read; throws when the deadline passes or a launcher ends.
  void wait_for_input(Deadline deadline, std::string_view doing);
  void read_from(Peer& peer);
  void agree(const Agreement& agreement);
  void end(std::chrono::milliseconds patience) noexcept;

  std::string directory_;
  int world_size_;
  std::string token_;  // empty: workers come over a socket that only this user reaches
  Fd listener_;
  std::unique_ptr<Workers> workers_;
  std::vector<Peer> peers_;
  std::map<std::string, std::string> meeting_;
  std::string version_;
};

}  // namespace chorus::perf
