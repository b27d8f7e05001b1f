// Cables of an emulated cluster that fail while a job uses them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "perf/cluster/cluster.hpp"
#include "perf/cluster/start.hpp"

namespace chorus::perf {

enum class Fault : std::uint8_t {
  cut,      ///< the switch's end is down: no carrier
  down,     ///< the host's interface is down
  silence,  ///< both ends drop all
  deaf,     ///< the switch's end drops all that goes to the host
  slow,     ///< a tenth of the rate, both ways
};
inline constexpr Fault kFaults[] = {Fault::cut, Fault::down, Fault::silence, Fault::deaf,
                                    Fault::slow};
[[nodiscard]] const char* name_of(Fault fault);

/// What a rank has noted of one round of calls: when it began and what its three calls took.
struct Round {
  std::int64_t begin_us = 0;
  std::int64_t reduce_us = 0;
  std::int64_t gather_us = 0;
  std::int64_t small_us = 0;

  [[nodiscard]] std::int64_t worst_us() const;
};

/// A job of faults-job on all hosts of a cluster, ended by end() or the destructor.
class FaultyJob {
 public:
  /// Starts the cluster (NotAllowed) and the job; returns when it has made calls.
  /// `variables`: besides those that keep it from probing, or in their place.
  explicit FaultyJob(const std::string& cluster, const Variables& variables = {});
  FaultyJob(const FaultyJob&) = delete;
  FaultyJob& operator=(const FaultyJob&) = delete;
  ~FaultyJob();

  void inflict(Fault fault, int host, int network);
  void mend(int host, int network);

  /// Rounds that rank 0 has made.
  [[nodiscard]] std::size_t rounds();
  /// Waits until that many more have been made. Throws Error when a rank ends, or after 60 s.
  void await_rounds(std::size_t more);
  /// Waits until the cable has carried so many of `host`'s bytes more. False after `seconds`.
  bool await_use(int host, int network, std::int64_t bytes, double seconds);
  [[nodiscard]] std::int64_t sent_bytes(int host, int network) const;

  /// Waits until the ranks have said `text` so many times, all together. False after 180 s.
  bool await_said(const std::string& text, std::size_t times);
  /// Kills a rank, and waits for the others to end; what they said.
  [[nodiscard]] std::string kill(int rank);

  /// Ends the job in order. Returns how the ranks ended that did not end well, and what they said.
  [[nodiscard]] std::string end();
  [[nodiscard]] std::vector<Round> rounds_of(int rank) const;
  /// Wrong elements, over all ranks.
  [[nodiscard]] std::int64_t wrong() const;
  /// What all ranks have said: their logs.
  [[nodiscard]] std::string said() const;
  [[nodiscard]] int num_hosts() const;
  [[nodiscard]] int num_networks() const;
  [[nodiscard]] bool has_cable(int host, int network) const;

 private:
  void on(int machine, const std::string& command) const;
  [[nodiscard]] std::string shaped(int machine, const std::string& device) const;
  void throw_if_ended();
  std::string how_they_end();
  [[nodiscard]] std::string notes(int rank) const;

  const Scratch scratch_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<Child> ranks_;
};

}  // namespace chorus::perf
