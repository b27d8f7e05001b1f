// Which message is for which receive.
#include <algorithm>
#include <cstring>
#include <utility>

#include "drivers/message_driver.hpp"

namespace chorus_torch {
namespace {

using Kind = chorus::Call::Kind;

bool wants(const Task& receive, chorus::Rank source, std::int64_t tag) {
  return receive.tag == tag && (receive.from_anyone || receive.calls.front().peer == source);
}

chorus::Call envelope_call(Kind kind, Envelope& envelope, chorus::Rank peer) {
  return {.kind = kind,
          .input = &envelope,
          .output = &envelope,
          .count = sizeof(Envelope),
          .type = chorus::DataType::uint8,
          .peer = peer};
}

}  // namespace

void MessageDriver::begin_send(const std::shared_ptr<Task>& task) {
  const chorus::Call& call = task->calls.front();
  auto envelope = std::make_unique<Envelope>();
  envelope->tag = task->tag;
  envelope->count = call.count;
  envelope->type = call.type;
  if (call.peer == communicator_->rank()) return send_to_itself(task, *envelope);
  const bool whole = envelope->is_whole();
  if (whole && call.count > 0) std::memcpy(envelope->inside.data(), call.input, envelope->bytes());
  const chorus::Call first = envelope_call(Kind::send, *envelope, call.peer);
  sending_.push_back({.task = task, .envelope = std::move(envelope), .requests = {}});
  auto& requests = sending_.back().requests;
  requests.push_back(communicator_->start(first));
  if (!whole) requests.push_back(communicator_->start(call));
}

void MessageDriver::send_to_itself(const std::shared_ptr<Task>& task, const Envelope& envelope) {
  auto message = std::make_unique<Arriving>();
  message->source = communicator_->rank();
  message->envelope = envelope;
  message->whole = true;
  const auto* const bytes = static_cast<const std::byte*>(task->calls.front().input);
  if (envelope.is_whole()) {
    std::copy(bytes, bytes + envelope.bytes(), message->envelope.inside.begin());
  } else {
    message->kept.assign(bytes, bytes + envelope.bytes());
  }
  ended_.push_back(task);
  const auto receive = std::ranges::find_if(
      posted_, [&](const auto& waiting) { return wants(*waiting, message->source, envelope.tag); });
  if (receive == posted_.end()) {
    arriving_.push_back(std::move(message));
    return;
  }
  require_alike(**receive, *message);
  message->task = std::move(*receive);
  posted_.erase(receive);
  finish(*message);
}

void MessageDriver::begin_receive(const std::shared_ptr<Task>& task) {
  const auto found = std::ranges::find_if(arriving_, [&](const auto& message) {
    return !message->task && wants(*task, message->source, message->envelope.tag);
  });
  if (found == arriving_.end()) {
    posted_.push_back(task);
    return;
  }
  require_alike(*task, **found);
  (*found)->task = task;  // move_arriving() does the rest
}

// For the envelopes that receives wait for: from the peer that one names, else from those that are
// known to have sent something. Waiting for a peer that has left is a failure, so that nobody may
// wait for whoever could have sent but need not.
void MessageDriver::listen() {
  const chorus::Rank me = communicator_->rank();
  for (std::size_t i = 0; i < posted_.size(); ++i) {
    blamed_ = posted_[i];
    if (!blamed_->from_anyone) {
      if (blamed_->calls.front().peer != me) listen_to(blamed_->calls.front().peer);
      continue;
    }
    for (chorus::Rank peer = 0; peer < communicator_->world_size(); ++peer) {
      if (peer == me || listening_[static_cast<std::size_t>(peer)]) continue;
      if (communicator_->has_message(peer)) listen_to(peer);
    }
  }
}

void MessageDriver::listen_to(chorus::Rank peer) {
  auto& listening = listening_[static_cast<std::size_t>(peer)];
  if (listening) return;
  listening = std::make_unique<Listening>();
  listening->request = communicator_->start(envelope_call(Kind::recv, listening->envelope, peer));
}

void MessageDriver::move_sending() {
  for (auto sending = sending_.begin(); sending != sending_.end();) {
    blamed_ = sending->task;
    bool complete = true;
    for (chorus::Request& request : sending->requests) complete = request.test() && complete;
    if (complete) ended_.push_back(sending->task);
    sending = complete ? sending_.erase(sending) : sending + 1;
  }
}

void MessageDriver::move_listening() {
  for (std::size_t peer = 0; peer < listening_.size(); ++peer) {
    while (listening_[peer]) {
      const auto asks = std::ranges::find_if(posted_, [&](const auto& task) {
        return task->from_anyone || task->calls.front().peer == static_cast<chorus::Rank>(peer);
      });
      if (asks != posted_.end()) blamed_ = *asks;
      if (!listening_[peer]->request.test()) break;
      const Envelope envelope = listening_[peer]->envelope;
      listening_[peer].reset();
      arrived(static_cast<chorus::Rank>(peer), envelope);
      listen();
    }
  }
}

void MessageDriver::arrived(chorus::Rank source, const Envelope& envelope) {
  auto message = std::make_unique<Arriving>();
  message->source = source;
  message->envelope = envelope;
  message->whole = envelope.is_whole();
  chorus::Call rest{
      .kind = Kind::recv, .count = envelope.count, .type = envelope.type, .peer = source};
  const auto receive = std::ranges::find_if(
      posted_, [&](const auto& waiting) { return wants(*waiting, source, envelope.tag); });
  if (receive != posted_.end()) {
    blamed_ = *receive;
    require_alike(*blamed_, *message);
    posted_.erase(receive);
    message->task = blamed_;
    message->in_place = !message->whole;
    rest.output = blamed_->calls.front().output;
  } else if (!message->whole) {
    message->kept.resize(envelope.bytes());
    rest.output = message->kept.data();
  }
  arriving_.push_back(std::move(message));
  if (!arriving_.back()->whole) arriving_.back()->request = communicator_->start(rest);
}

void MessageDriver::move_arriving() {
  for (auto at = arriving_.begin(); at != arriving_.end();) {
    Arriving& message = **at;
    blamed_ = message.task;
    message.whole = message.whole || message.request.test();
    const bool complete = message.whole && message.task;
    if (complete) finish(message);
    at = complete ? arriving_.erase(at) : at + 1;
  }
}

void MessageDriver::require_alike(const Task& task, const Arriving& message) const {
  const chorus::Call& call = task.calls.front();
  if (call.count == message.envelope.count && call.type == message.envelope.type) return;
  Envelope expected;
  expected.count = call.count;
  expected.type = call.type;
  throw chorus::CollectiveError("rank " + std::to_string(communicator_->rank()) + ": " + task.name +
                                ": rank " + std::to_string(message.source) + " sent " +
                                message.envelope.described() + ", but what is received is " +
                                expected.described());
}

// All of it is here, and its task is known.
void MessageDriver::finish(Arriving& message) {
  Task& task = *message.task;
  const std::size_t bytes = message.envelope.bytes();
  if (!message.in_place && bytes > 0) {
    const std::byte* const from =
        message.envelope.is_whole() ? message.envelope.inside.data() : message.kept.data();
    std::memcpy(task.calls.front().output, from, bytes);
  }
  task.source = message.source;
  if (task.unpack) task.unpack();
  ended_.push_back(std::move(message.task));
}

}  // namespace chorus_torch
