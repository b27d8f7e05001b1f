// The flight recorder: the last calls of this rank, always on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ticks.hpp"
#include "chorus/communicator.hpp"

namespace chorus {

/// "all_reduce(count 1000, float32, sum)": what must be equal on all ranks for a call to match.
[[nodiscard]] std::string signature(const Call& call);
[[nodiscard]] std::string_view name_of(Call::Kind kind);

/// A ring of the last kRecords calls. Recording costs one or two readings of a counter and a few
/// stores; nothing is formatted until it is dumped.
class FlightRecorder {
 public:
  static constexpr std::size_t kRecords = 512;

  /// The name of a schedule, cut to what is kept of it.
  struct Label {
    std::array<char, 24> text = {};  ///< ends with a zero
  };
  [[nodiscard]] static Label label(std::string_view schedule);

  /// Returns the record's number, for finish().
  std::uint64_t begin(std::uint64_t sequence, const Call& call, const Label& schedule);
  void finish(std::uint64_t record);
  /// The same for one that took a few microseconds at most: its end is its beginning.
  void finish_brief(std::uint64_t record);
  /// A message that moved at once, at about this time: as the kernel's tick (4 ms or finer) has it.
  void note(std::uint64_t sequence, const Call& call, const Label& schedule);

  /// Sequence numbers and signatures of the last `count` collectives, oldest first.
  [[nodiscard]] std::vector<std::pair<std::uint64_t, std::string>> last_collectives(
      std::size_t count) const;

  struct Header {
    std::string job;  ///< flight_job()
    std::string communicator;
    Rank rank = 0;
    int world_size = 1;
    std::string failure;  ///< the sentence, or empty
    std::string waiting;  ///< what the last call was waiting for, or empty
  };
  /// Writes a file (write_flight(); format: docs/formats.md) and returns its path; empty if it
  /// could not be written, which is logged. `flight_dir` as Options::flight_dir, not empty.
  std::string dump(const std::string& flight_dir, const Header& header) const;

 private:
  struct alignas(64) Record {
    std::uint64_t sequence = 0;
    Call::Kind kind = Call::Kind::barrier;
    DataType type = DataType::uint8;
    ReduceOp op = ReduceOp::sum;
    bool coarse = false;  ///< times are nanoseconds of Unix time, not Ticks
    Rank peer = 0;
    std::size_t count = 0;
    Label schedule;
    std::uint64_t begun = 0, finished = 0;  // Ticks; finished == 0 while it runs
  };
  Record& add(std::uint64_t sequence, const Call& call, const Label& schedule);
  [[nodiscard]] static Call call_of(const Record& record);

  std::array<Record, kRecords> records_;
  std::uint64_t next_ = 0;
  Ticks ticks_;
};

}  // namespace chorus
