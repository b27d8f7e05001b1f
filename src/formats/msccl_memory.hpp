// One rank's buffers in an MSCCL program: what lies where, and who touches it unordered. For
// formats/ only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "formats/msccl_program.hpp"

namespace chorus::formats {

/// A step of the rank whose memory it is.
struct LocalStep {
  int block = -1;
  int step = -1;
};

/// What is known to be done, per threadblock of the file: how many of its steps.
using Clock = std::vector<int>;

/// Places are numbered: scratch first, then input and output, which coincide as the collective's
/// in-place form has them.
class MscclMemory {
 public:
  /// `outline` needs no steps. Throws InputError if the file gives the rank larger buffers than the
  /// collective has.
  MscclMemory(const MscclGpu& gpu, const Schedule& outline, Rank rank, bool in_place,
              std::string_view where);

  [[nodiscard]] int place(LocalRange range) const;
  [[nodiscard]] int value(int place) const { return values_[place]; }
  [[nodiscard]] LocalStep writer(int place) const { return accesses_[place].writer; }

  /// What the collective gives the rank and takes from it, in chunks.
  [[nodiscard]] int inputs() const { return inputs_; }
  [[nodiscard]] int outputs() const { return outputs_; }

  /// Sets a place before the run.
  void preset(int place, int value) { values_[place] = value; }

  /// By step `by`, which knows `clock`; `first_block` is the index of the rank's threadblock 0 in
  /// it. Returns the unordered access it collides with, if there is one.
  std::optional<LocalStep> read(int place, LocalStep by, const Clock& clock, int first_block);
  std::optional<LocalStep> write(int place, int value, LocalStep by, const Clock& clock,
                                 int first_block);

 private:
  struct Access {
    LocalStep writer;
    std::vector<LocalStep> readers;  // since, the latest of each threadblock
  };

  int inputs_ = 0;
  int outputs_ = 0;
  int input_base_ = 0;
  int output_base_ = 0;
  std::vector<int> values_;
  std::vector<Access> accesses_;
};

}  // namespace chorus::formats
