// One axis' calls on device memory, through Chorus' NCCL interface: ordered beside the computation,
// without a wait of the host.
#pragma once

#include <cstdint>
#include <memory>

#include "chorus/communicator.hpp"
#include "ops/gpu.hpp"

struct ncclComm;

namespace trainer {

/// The communicators of the ranks of `members`, on memory of their GPUs.
class Wire {
 public:
  /// For collectives; or for messages along the ring of ranks one way only: then one communicator
  /// to the next rank and one from the one before, so that no message waits for another pair's.
  enum class Ways : std::uint8_t { all, ahead, back };
  /// Collective over `members`, which stays the host's.
  Wire(chorus::Communicator& members, Gpu& gpu, Ways ways);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  struct Ticket {
    Lane* lane = nullptr;
    std::uint64_t number = 0;
    Stamp begin, end;
  };
  /// The call begins when all computation so far is done. Throws chorus::CollectiveError.
  Ticket start(const chorus::Call& call);

 private:
  struct Track {
    ncclComm* comm = nullptr;
    std::unique_ptr<Lane> lane;
    int peer = 0;  ///< where there are two ranks
    ~Track();
  };
  std::unique_ptr<Track> open(chorus::Communicator& members, Gpu& gpu, int first, int step,
                              bool all) const;

  int rank_ = 0;
  int size_ = 1;
  std::unique_ptr<Track> all_, to_, from_;
};

}  // namespace trainer
