// What rank 0 asks the hosts that probe, and what it makes of their answers.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chorus/types.hpp"
#include "runtime/control/control.hpp"
#include "runtime/probing/batch.hpp"
#include "runtime/probing/flows.hpp"
#include "runtime/probing/networks.hpp"
#include "runtime/probing/probe.hpp"
#include "topology/probing/prober.hpp"

namespace chorus {

/// Of all cables together if there are no networks, else of one network after the other, each with
/// its own time.
class ProbeInquiry {
 public:
  /// `ranks`: by host, the one that measures. `budget_ms`: of experiments on one network.
  ProbeInquiry(std::span<const Rank> ranks, std::span<const probing::HostNetwork> networks,
               int budget_ms);

  /// Nothing once all is asked, or time is up.
  [[nodiscard]] ProbeBatch next();
  /// False where the rest of a batch is not worth its time.
  [[nodiscard]] bool goes_on() const { return time_left() && joined_; }
  /// In an experiment.
  void spent(double seconds) { measuring_s_ += seconds; }
  /// `told`: by host, as its rank has written it. Throws BootstrapError if it is no measurement.
  void take(const Table& told, const ProbeQuestion& question);
  void conclude(Probed& probed) const;

  [[nodiscard]] int done() const { return experiments_; }
  [[nodiscard]] int total() const {
    return experiments_ - found_.back().done() + found_.back().total();
  }
  [[nodiscard]] std::string phase() const;

 private:
  [[nodiscard]] bool time_left() const { return measuring_s_ * 1e3 < budget_ms_; }
  void begin_network(std::size_t number);
  [[nodiscard]] std::vector<int> hosts_here() const;
  void scout(std::span<const std::vector<probing::Flow>> tournament, std::size_t hosts,
             ProbeBatch& batch);
  [[nodiscard]] std::vector<std::vector<Received>> answers(const Table& told,
                                                           const ProbeQuestion& question) const;

  const std::span<const Rank> ranks_;
  const std::span<const probing::HostNetwork> networks_;
  const int budget_ms_;
  std::vector<probing::Prober> found_;  // by network; the last is in use
  std::size_t network_ = 0;             // of that one, as ProbeQuestion has it
  bool joined_ = true;                  // as far as is seen all hosts of a network are
  int experiments_ = 0;
  double measuring_s_ = 0;       // on this network
  std::vector<double> fastest_;  // scout of each host here, bytes per second
  std::vector<probing::PairLatency> latencies_;
  std::uint64_t bytes_ = 0;                                 // that have come, in all
  std::vector<std::vector<std::uint64_t>> measured_bytes_;  // of the first prober's experiments
};

}  // namespace chorus
