// What a rank did when: its passes, the calls in flight, and where it stood still for them.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "chorus/communicator.hpp"
#include "ops/gpu.hpp"

namespace trainer {

/// One bar of a timeline. Names are string literals; a number that does not apply is −1.
struct Span {
  enum class Lane : std::uint8_t {
    compute,    ///< passes and updates, with the waits inside them
    exposed,    ///< standing still for a call
    in_flight,  ///< from a call's start until it was seen complete
  };
  Lane lane = Lane::compute;
  const char* name = "";
  const char* axis = "";  ///< of a call
  double begin_s = 0;     ///< since Trace::start()
  double end_s = 0;
  std::int32_t chunk = -1;
  std::int32_t micro_batch = -1;
};

/// Keeps spans in memory taken before: what does not fit is counted and left out.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  /// A moment: by the host's clock, or the device's where one computes.
  struct Mark {
    Clock::time_point host;
    Stamp device;
    Mark(Clock::time_point at) : host(at) {}  // NOLINT(google-explicit-constructor)
    Mark(Stamp at) : device(at) {}            // NOLINT(google-explicit-constructor)
  };

  /// Until then nothing is kept. What `gpu` computes, if there is one, is timed by its own clock;
  /// both begin here, when all before is done.
  void start(std::size_t most_spans, Gpu* gpu = nullptr);
  /// Waits for what is still to be timed.
  void stop();
  [[nodiscard]] bool on() const { return on_; }

  /// Now, of the computation.
  [[nodiscard]] Mark mark();
  void add(Span::Lane lane, const char* name, const char* axis, Mark begin, Mark end,
           std::int32_t chunk = -1, std::int32_t micro_batch = -1);

  /// After stop() where a device computes.
  [[nodiscard]] const std::vector<Span>& spans() const { return spans_; }
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }

 private:
  bool on_ = false;
  /// Of a span whose times the device knows later.
  struct Timed {
    std::size_t span;
    Stamp begin, end;
  };
  Clock::time_point begin_;
  Gpu* gpu_ = nullptr;
  std::uint32_t round_ = 0;
  std::vector<Timed> timed_;
  std::vector<Span> spans_;
  std::uint64_t left_out_ = 0;
};

/// Collective: every rank's spans on rank 0, [world_size]; nothing elsewhere. Clocks are those of
/// the ranks, set to zero by a barrier before Trace::start().
[[nodiscard]] std::vector<std::vector<Span>> gather_spans(chorus::Communicator& world,
                                                          const Trace& trace);

/// Chrome's trace format (chrome://tracing, Perfetto): a process per rank, a thread per lane.
[[nodiscard]] std::string chrome_trace(std::span<const std::vector<Span>> ranks);

/// A picture: per rank a bar of passes with the waits cut out in red, over the calls in flight by
/// axis.
[[nodiscard]] std::string trace_svg(std::span<const std::vector<Span>> ranks);

/// Share of the time that calls are in flight, counted once where several are, in which the rank
/// computes.
[[nodiscard]] double overlap_share(const std::vector<Span>& spans);

}  // namespace trainer
