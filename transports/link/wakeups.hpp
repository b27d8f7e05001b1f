// What wakes a rank that sleeps: one pipe for all its communicators, and those of its peers, each
// opened once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/files/fd.hpp"
#include "base/files/foreign_file.hpp"

namespace chorus {

/// Shared by the communicators of one rank, which several threads may use at once. Threads that
/// sleep at the same time cannot all wait on the pipe, because the first to wake would take the
/// others' bytes: one does, and wakes the others when it wakes.
class Wakeups {
 public:
  /// Throws LinkError if the system gives no pipe.
  Wakeups();
  Wakeups(const Wakeups&) = delete;
  Wakeups& operator=(const Wakeups&) = delete;

  /// The end that peers open through /proc, and its inode.
  [[nodiscard]] int pipe_fd() const { return write_.get(); }
  [[nodiscard]] std::uint64_t pipe_inode() const { return inode_; }

  /// The pipe of a peer's process; null, and why in `reason`, if it cannot be opened.
  [[nodiscard]] std::shared_ptr<const Fd> open_peer(int pid, int fd, std::uint64_t inode,
                                                    std::string& reason);

  /// One of the rank's communicators, that sleeps now and then.
  class Sleeper {
   public:
    explicit Sleeper(std::shared_ptr<Wakeups> of) : of_(std::move(of)) {}
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() { end(); }

    void begin();
    void end();
    /// To be polled between begin() and end().
    [[nodiscard]] int fd() const;

   private:
    enum class State : std::uint8_t { awake, on_pipe, beside };
    const std::shared_ptr<Wakeups> of_;
    State state_ = State::awake;
    int beside_ = -1;  ///< what wakes it in place of the pipe
  };

 private:
  Fd read_, write_;
  std::uint64_t inode_ = 0;

  std::mutex mutex_;  ///< guards what follows
  std::thread::id on_pipe_;
  int sleepers_on_pipe_ = 0;  ///< communicators of that one thread
  std::vector<int> beside_;   ///< descriptors of other threads that sleep
  std::map<std::pair<int, std::uint64_t>, std::weak_ptr<const Fd>> peers_;  ///< by pid and inode
};

}  // namespace chorus
