// The two communicators of one process group, how its ranks meet, and how they part.
#pragma once

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "drivers/collective_driver.hpp"
#include "drivers/gpu_driver.hpp"
#include "drivers/message_driver.hpp"

namespace chorus_torch {

class Group {
 public:
  /// Meets the other ranks through `store`, within `timeout`. Throws chorus::BootstrapError that
  /// names who has not come. `address`: where other hosts reach this one, if the ranks are on
  /// several.
  static std::shared_ptr<Group> meet(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                     std::chrono::milliseconds timeout, const std::string& address);
  /// Meets those ranks of this group that are not `excluded`, in the same order, also after a
  /// failure: the new group has nothing in common with this one but the store. Throws
  /// chorus::BootstrapError that names who has not come.
  [[nodiscard]] std::shared_ptr<Group> shrink(std::span<const std::int64_t> excluded,
                                              std::chrono::milliseconds timeout,
                                              const std::string& address) const;
  ~Group();

  [[nodiscard]] std::chrono::milliseconds timeout() const { return timeout_; }
  /// Of the calls from now on; those that were made before keep theirs. Of the driver of GPUs only
  /// before join_gpus(). Throws chorus::InputError if the group has been left.
  void set_timeout(std::chrono::milliseconds timeout);
  [[nodiscard]] int rank() const { return rank_; }
  /// Why it has failed, as far as is known by now.
  [[nodiscard]] std::optional<std::string> failure() { return collectives_->failure(); }
  [[nodiscard]] int size() const { return size_; }
  /// False in a child that was forked since: threads and connections are its parent's.
  [[nodiscard]] bool of_this_process() const;
  CollectiveDriver& collectives() { return *collectives_; }
  MessageDriver& messages() { return *messages_; }
  /// The driver of what is on GPU memory; null before join_gpus().
  std::shared_ptr<GpuDriver> gpus();
  /// The same, made by the first call, which is collective: each rank names the GPU that it will
  /// use. Throws chorus::Error.
  std::shared_ptr<GpuDriver> join_gpus(int gpu, const GpuDriver::MakeStream& make_stream);

  /// A collective that this rank refuses to make: the others, who call it, must not wait in vain.
  /// It makes a barrier in its place, so that ranks that all refuse go on, and leaves the reason
  /// in the store for those that do not.
  void refuse_collective(const std::string& why);
  /// The same for a message. It fails all messages of the group.
  void refuse_message(const std::string& why);
  /// Returns when all ranks have called it, else throws chorus::CollectiveError on each of them
  /// that names those that have not (`all`: every one, else the first). Rank 0 waits for `timeout`,
  /// which may be 0, the others a little longer for its verdict.
  void monitored_barrier(std::chrono::milliseconds timeout, bool all);

  /// A call on GPU memory. It fails all of the group that is on GPUs.
  void refuse_on_gpu(const std::string& why);

  /// Fails all calls of the group on all its ranks; leaving then waits for nobody.
  void abort(const std::string& reason);
  /// Begins to leave; the driver's thread does it.
  void leave();
  /// Leaves every group of this process and waits for the end. With a reason: fails them first.
  static void leave_all(const std::string& reason);

 private:
  /// Who meets: the ranks, and what they and the call that they come to are called in sentences.
  struct Meeting {
    const char* call = "init_process_group(\"chorus\")";
    std::vector<int> names = {};  ///< by rank; empty: as they are
    bool anew = false;            ///< without what this process is in already
  };
  Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
        std::chrono::milliseconds timeout, Meeting meeting);
  void meet(const std::string& address);
  [[nodiscard]] int limit_ms(std::chrono::milliseconds timeout) const;
  std::string text_at(const std::string& key);
  void tell(const std::string& key, const std::string& text);
  std::vector<int> missing_at(const std::string& place, std::chrono::milliseconds timeout,
                              bool all);
  std::string wait_for(const std::string& key, std::chrono::milliseconds timeout);
  struct Arrivals;
  Arrivals arrived(const std::string& base);
  std::string receive(const std::string& address, const std::string& interface);
  std::string come();
  [[nodiscard]] int name_of(int rank) const;
  [[nodiscard]] std::string did_not_come(const std::vector<int>& ranks) const;
  void fail(const std::string& reason);
  static void enter(const std::shared_ptr<Group>& group);
  chorus::Communicator join(const std::string& answer, const chorus::Options& options);
  void find_base();
  std::shared_ptr<chorus::Communicator> maker();
  [[nodiscard]] std::string base_entry() const;
  std::string amended(std::string sentence);

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_;
  int size_;
  std::atomic<std::chrono::milliseconds> timeout_;
  Meeting meeting_;
  int set_by_hand_ms_ = INT_MAX;  // a stricter limit than torch's; INT_MAX: none
  int process_;                   // a forked child owns nothing of this
  int monitored_ = 0;
  std::string place_;  // what the keys of this meeting begin with
  // What this one may be made from; while it meets.
  std::shared_ptr<Group> base_;
  std::shared_ptr<chorus::Communicator> base_maker_;
  std::unique_ptr<MessageDriver> messages_;
  std::unique_ptr<CollectiveDriver> collectives_;
  std::mutex gpus_joining_, mutex_;  // the latter of what follows
  std::shared_ptr<GpuDriver> gpus_;
  /// What groups that are made later are made from; in the first group of a process.
  std::shared_ptr<chorus::Communicator> maker_;
};

}  // namespace chorus_torch
