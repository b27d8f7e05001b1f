// Where a program's ranges lie in memory, and which lanes could touch the same place at once. For
// model/ only.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "chorus/schedule.hpp"
#include "model/program/program.hpp"

namespace chorus {

/// "output[3]".
[[nodiscard]] std::string name_of(const LocalRange& range);

/// One rank's buffers as numbered places, with places that coincide in place numbered once.
class Places {
 public:
  /// `outline` needs no steps.
  Places(const Program& program, const Schedule& outline, bool in_place);

  /// Of a range's first chunk; the others follow.
  [[nodiscard]] int at(const LocalRange& range) const;
  [[nodiscard]] int size() const { return input_ + input_size_; }
  [[nodiscard]] int input_size() const { return input_size_; }

 private:
  int output_ = 0;
  int input_ = 0;
  int input_size_ = 0;
  int first_aliased_ = 0;  // input indices [first, end) coincide with the output from …
  int end_aliased_ = 0;
  int alias_ = 0;  // … this index on
};

/// First place that two instructions touch, one of them writing, without an order between them;
/// `order` is any order in which all instructions of one tile can be issued.
///
/// Order comes from lanes and Instruction::after. What an instruction sends from counts as read
/// until another instruction has waited for it.
[[nodiscard]] std::optional<std::string> first_race(const Program& program, const Places& places,
                                                    std::span<const Dependency> order);

}  // namespace chorus
