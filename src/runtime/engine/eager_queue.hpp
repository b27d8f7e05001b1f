// Short messages of one pair of ranks, run through its EagerRing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/engine/flight_recorder.hpp"
#include "runtime/executors/execution.hpp"
#include "transports/shm/eager_ring.hpp"

namespace chorus {

/// Both ends of a pair know by a message's size whether it is short, and so which way it goes. A
/// message that comes the other way than the next one should is of another size.
[[nodiscard]] inline bool comes_by_slots(EagerRing& eager_ring, InPort& slots) {
  // The sender begins no message before the last one has been put whole: what has come by slots
  // has all that went before it in the eager ring.
  return slots.has_message() && !eager_ring.has_message();
}

/// Messages of one direction that were begun together, in their order. Reusable: reset() prepares
/// it for the next.
class EagerQueue {
 public:
  struct Message {
    std::byte* memory = nullptr;
    std::size_t count = 0;
    DataType type = DataType::uint8;
    std::uint32_t tag = 0;
    std::uint64_t number = 0;  ///< MessageNumber, packed
    std::uint64_t flight_record = 0;
  };

  /// `slots`: where longer messages of the same direction come from; null for those sent.
  void reset(EagerRing& eager_ring, Rank peer, InPort* slots, FlightRecorder& flight) {
    eager_ring_ = &eager_ring;
    peer_ = peer;
    slots_ = slots;
    flight_ = &flight;
    messages_.clear();
    next_ = 0;
    mismatch_ = false;
  }
  void add(const Message& message) { messages_.push_back(message); }

  /// Goes as far as it can without waiting; true if anything moved.
  bool step();
  [[nodiscard]] bool finished() const { return next_ == messages_.size(); }
  [[nodiscard]] Rank mismatch() const { return mismatch_ ? peer_ : -1; }
  [[nodiscard]] Waiting waiting() const;
  /// The message that it waits for, while it is not finished.
  [[nodiscard]] const Message& current() const { return messages_[next_]; }

 private:
  [[nodiscard]] bool move(const Message& message);

  EagerRing* eager_ring_ = nullptr;
  Rank peer_ = -1;
  InPort* slots_ = nullptr;
  FlightRecorder* flight_ = nullptr;
  std::vector<Message> messages_;
  std::size_t next_ = 0;
  std::uint32_t looks_ = 0;
  bool mismatch_ = false;
};

}  // namespace chorus
