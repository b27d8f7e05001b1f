// The thread that looks after one DeviceCommunicator: its caller is told of nothing, since calls
// return before they run.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/files/fd.hpp"
#include "chorus/communicator.hpp"
#include "device/layout.hpp"
#include "runtime/control/control.hpp"
#include "runtime/engine/connections.hpp"

namespace chorus {

/// Ends kernels when the coordinator has a verdict, tells the coordinator when a kernel failed or
/// has been waiting for long, and keeps the sentence for whoever asks.
class DeviceWatch {
 public:
  /// `group` names the communicator's GPU calls in the control plane; its members are open.
  /// `listen` is called whenever the coordinator may have said something.
  DeviceWatch(Control& control, const GroupPlace& place, std::string group,
              device::HostStatus& status, int timeout_ms, std::function<void()> listen);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  /// A call has been enqueued under this number.
  void note(std::uint64_t sequence, const Call& call);
  /// Null while all is well. From any thread. Once a kernel has given up, or was stopped, this
  /// waits for the sentence, for the call's stream ends as that of one that was finished.
  [[nodiscard]] const std::string* error() const noexcept;
  /// From any thread.
  void abort(std::string_view reason);
  /// Messages to a peer are no longer carried. From any thread, once.
  void link_failed(const std::string& reason);

 private:
  static constexpr std::size_t kNotes = 256;

  void run();
  void look();
  void look_at_failure(device::Failure failure);
  void look_at_progress();
  void give_up(const std::string& reason);
  void ask_who_is_missing(std::uint64_t sequence, Rank known);
  void fail(const std::string& reason);
  void stop_kernels();
  [[nodiscard]] std::string signature_of(std::uint64_t sequence);
  [[nodiscard]] std::uint64_t collective_of(std::uint64_t sequence);

  Control& control_;
  const GroupPlace& place_;
  std::string group_;
  device::HostStatus& status_;
  int timeout_ms_;
  std::function<void()> listen_;
  std::mutex mutex_;  // notes_, collectives_, link_failure_
  std::string link_failure_;
  struct Note {
    std::uint64_t sequence = 0;
    Call call;
    std::uint64_t collective = 0;  ///< how many collectives there were with it; of messages 0
  };
  std::array<Note, kNotes> notes_;
  std::uint64_t collectives_ = 0;
  std::string sentence_;
  std::string unknown_ = "a kernel was stopped, and nobody has told why";
  std::atomic<const std::string*> error_{nullptr};
  std::atomic<bool> stop_{false};
  std::uint64_t begun_ = 0;  // the call that was under way when last looked
  int looks_ = 0;            // since then
  Fd wake_;
  std::thread thread_;
};

}  // namespace chorus
