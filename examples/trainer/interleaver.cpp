#include "interleaver.hpp"

namespace trainer {

MicroBatchInterleaver::~MicroBatchInterleaver() {
  pass_to(kEnd);
  helper_.join();
}

void MicroBatchInterleaver::pass_to(int half) {
  turn_.store(half, std::memory_order_release);
  turn_.notify_all();
}

void MicroBatchInterleaver::play(int half) {
  try {
    if (!error_) call_(body_, half);
  } catch (const Stopped&) {
    // The other half's error is the one to tell.
  } catch (...) {
    if (!error_) error_ = std::current_exception();
  }
  ended_[half] = true;
}

void MicroBatchInterleaver::serve() {
  for (;;) {
    turn_.wait(0, std::memory_order_acquire);
    if (turn_.load(std::memory_order_acquire) == kEnd) return;
    play(1);
    pass_to(0);
  }
}

void MicroBatchInterleaver::run(void* body, Call call) {
  body_ = body;
  call_ = call;
  error_ = nullptr;
  ended_[0] = ended_[1] = false;
  running_ = true;
  play(0);
  while (!ended_[1]) {
    pass_to(1);
    turn_.wait(1, std::memory_order_acquire);
  }
  running_ = false;
  if (error_) std::rethrow_exception(error_);
}

void MicroBatchInterleaver::give_way() {
  if (!running_) return;
  if (error_) throw Stopped{};
  const int mine = turn_.load(std::memory_order_relaxed);
  if (ended_[1 - mine]) return;
  pass_to(1 - mine);
  turn_.wait(1 - mine, std::memory_order_acquire);
  if (error_) throw Stopped{};
}

}  // namespace trainer
