#include "runtime/engine/burst.hpp"

namespace chorus {
namespace {

// Looks in vain between two at the slots.
constexpr std::uint32_t kLooksPerSlots = 64;

}  // namespace

bool Burst::step() {
  const std::size_t before = next_;
  while (!finished() && move(messages_[next_])) {
    flight_->finish(messages_[next_].flight_record);
    ++next_;
  }
  mailbox_->announce();
  return next_ != before;
}

bool Burst::move(const Message& message) {
  const std::size_t bytes = message.count * size_of(message.type);
  if (slots_ == nullptr) return mailbox_->try_put({message.memory, bytes}, message.tag);
  mailbox_->look_ahead(bytes);
  if (!mailbox_->has_message()) {
    mismatch_ = ++looks_ % kLooksPerSlots == 0 && comes_by_slots(*mailbox_, *slots_);
    return false;
  }
  mismatch_ = mailbox_->tag() != message.tag;
  if (mismatch_) return false;
  mailbox_->take({message.memory, bytes});
  return true;
}

Waiting Burst::waiting() const {
  return {.peer = peer_, .instruction = 1, .of = 1, .to_send = slots_ == nullptr};
}

}  // namespace chorus
