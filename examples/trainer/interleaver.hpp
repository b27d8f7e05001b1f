// Two halves of one task on one rank, in turn: while one waits for its messages, the other
// computes.
#pragma once

#include <atomic>
#include <exception>
#include <thread>

namespace trainer {

/// Exactly one of two bodies runs at any time, the second on a thread of its own, so that the
/// rank's communicators stay with one thread at a time. When a body gives way is for the bodies to
/// say, never for the clock: so all ranks, whose bodies are the same, make their calls in the same
/// order.
class MicroBatchInterleaver {
 public:
  MicroBatchInterleaver() : helper_([this] { serve(); }) {}
  ~MicroBatchInterleaver();
  MicroBatchInterleaver(const MicroBatchInterleaver&) = delete;
  MicroBatchInterleaver& operator=(const MicroBatchInterleaver&) = delete;

  /// Calls body(0) and, from its first give_way() on, body(1). Returns when both have; what one
  /// throws ends the other in its give_way(), and is thrown here.
  template <class Body>
  void run(Body& body) {
    run(&body, [](void* of, int half) { (*static_cast<Body*>(of))(half); });
  }
  /// Lets the other half go on until it gives way or ends. Outside of run() nothing happens.
  void give_way();

 private:
  using Call = void (*)(void*, int);
  struct Stopped {};  ///< unwinds the half whose other half has thrown
  static constexpr int kEnd = 2;

  void run(void* body, Call call);
  void serve();
  void play(int half);
  void pass_to(int half);

  std::atomic<int> turn_{0};  ///< the half that runs; kEnd: the helper ends
  void* body_ = nullptr;
  Call call_ = nullptr;
  bool running_ = false;
  bool ended_[2] = {};
  std::exception_ptr error_;
  std::thread helper_;  ///< last: it uses all of the above
};

}  // namespace trainer
