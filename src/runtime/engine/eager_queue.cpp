#include "runtime/engine/eager_queue.hpp"

namespace chorus {
namespace {

// Looks in vain between two at the slots.
constexpr std::uint32_t kLooksPerSlots = 64;

}  // namespace

bool EagerQueue::step() {
  const std::size_t before = next_;
  while (!finished() && move(messages_[next_])) {
    flight_->finish(messages_[next_].flight_record);
    ++next_;
  }
  eager_ring_->announce();
  return next_ != before;
}

bool EagerQueue::move(const Message& message) {
  const std::size_t bytes = message.count * size_of(message.type);
  if (slots_ == nullptr) return eager_ring_->try_put({message.memory, bytes}, message.tag);
  eager_ring_->look_ahead(bytes);
  if (!eager_ring_->has_message()) {
    mismatch_ = ++looks_ % kLooksPerSlots == 0 && comes_by_slots(*eager_ring_, *slots_);
    return false;
  }
  mismatch_ = eager_ring_->tag() != message.tag;
  if (mismatch_) return false;
  eager_ring_->take({message.memory, bytes});
  return true;
}

Waiting EagerQueue::waiting() const {
  return {.peer = peer_, .instruction = 1, .of = 1, .to_send = slots_ == nullptr};
}

}  // namespace chorus
