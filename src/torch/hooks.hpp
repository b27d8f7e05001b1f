// Who wants to know how calls end: torch's flight recorder and its like. Nothing of torch in here.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace chorus_torch {

/// Hooks have the ids of who registers them and are called without any lock held: of completion on
/// whichever thread ends a call, of failure on a thread of their own, since torch's takes seconds
/// to write what it knows, and the sentence of the failure shall not wait for that. Any thread.
class Hooks {
 public:
  using Completion = std::function<void(std::uint64_t key)>;
  using Abort = std::function<void()>;

  void on_completion(std::int64_t id, Completion hook);
  void on_abort(std::int64_t id, Abort hook);
  void forget_completion(std::int64_t id);
  void forget_abort(std::int64_t id);

  /// A number for a call, which no other call of this process ever had or has.
  [[nodiscard]] static std::uint64_t new_key();
  /// The call is over: well, or (the first time) the group has failed.
  void ended(std::uint64_t key, const std::string& error);
  /// Waits, within limits, for what failures have set going in this process: before it ends.
  static void finish();

 private:
  /// Never changed, but replaced: whoever calls the hooks keeps it meanwhile, since one may take
  /// the lock under which it was registered.
  template <class Hook>
  using Table = std::shared_ptr<const std::map<std::int64_t, Hook>>;
  template <class Hook>
  void set(Table<Hook>& table, std::int64_t id, Hook hook);
  template <class Hook>
  Table<Hook> all(const Table<Hook>& table);

  std::mutex mutex_;  // of which tables these are
  Table<Completion> completion_ = std::make_shared<std::map<std::int64_t, Completion>>();
  Table<Abort> abort_ = std::make_shared<std::map<std::int64_t, Abort>>();
  std::atomic<bool> awaited_ = false;  // there are completion hooks
  std::atomic<bool> failed_ = false;
};

}  // namespace chorus_torch
