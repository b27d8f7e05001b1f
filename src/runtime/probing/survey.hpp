// The network between hosts, measured beside the calls of the ranks that use it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>

#include "chorus/options.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/call_gate.hpp"
#include "runtime/engine/connections.hpp"
#include "runtime/executors/ports.hpp"
#include "runtime/probing/probe.hpp"

namespace chorus {

/// What the ranks of a communicator know of the network between their hosts, or will when a thread
/// of each has measured it with the others'. Shared with the communicators split from it: it goes
/// on until the last of them ends. Thread safe.
class Survey {
 public:
  /// Measures again, in a thread of its own, the network that rank 0's cache knows by `probe_key`;
  /// does not wait for the other ranks, which have to do the same.
  Survey(std::shared_ptr<Control> control, GroupPlace place, const Options& options,
         const SlotLayout& layout, const Connections& connections, std::string probe_key);
  /// Collective and brief. Measures, in a thread of its own, what rank 0's cache does not have
  /// (`use_cache` false: in any case). `place.key` names no other survey. Throws BootstrapError.
  Survey(std::shared_ptr<Control> control, GroupPlace place, const Options& options,
         const SlotLayout& layout, const Connections& connections, bool use_cache);
  ~Survey();
  Survey(const Survey&) = delete;
  Survey& operator=(const Survey&) = delete;

  /// From the start, alike on all ranks; null if it had to be measured.
  [[nodiscard]] const Probed* recalled() const { return recalled_ ? &*recalled_ : nullptr; }
  /// Waits until it is known; null if it never will be, or `stop` comes first.
  [[nodiscard]] const Probed* await(const std::stop_token& stop);
  /// What the calls of these ranks pass.
  [[nodiscard]] CallGate& gate() { return gate_; }

 private:
  void begin(Probed known, bool in_a_hurry);
  void measure(const std::stop_token& stop, Probed known, bool in_a_hurry);

  const std::shared_ptr<Control> control_;
  const GroupPlace place_;
  const Options options_;
  const SlotLayout layout_;
  const HostList hosts_;
  std::optional<Probed> recalled_;
  CallGate gate_;

  std::mutex mutex_;
  std::condition_variable_any settled_;
  std::optional<Probed> measured_;
  bool over_ = false;

  std::jthread thread_;  // last: it uses the others
};

}  // namespace chorus
