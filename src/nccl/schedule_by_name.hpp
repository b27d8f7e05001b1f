// Calls whose caller names the schedule that they take.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "chorus/communicator.hpp"

namespace chorus {

/// While it lives, collectives that start on `communicator` take the schedule of this name,
/// whatever their size: one of its plan, or a classic one (`chorus algorithms`). Empty: the
/// selected ones. All ranks must name the same. Used like the communicator, by one thread at a
/// time.
class ScheduleByName {
 public:
  ScheduleByName(Communicator& communicator, std::string name);
  ~ScheduleByName();
  ScheduleByName(const ScheduleByName&) = delete;
  ScheduleByName& operator=(const ScheduleByName&) = delete;

  /// Why no schedule of this name serves `kind` there, as a sentence; nothing if one does.
  [[nodiscard]] static std::optional<std::string> why_not(const Communicator& communicator,
                                                          Call::Kind kind, std::string_view name);

 private:
  Communicator::Impl& communicator_;
};

}  // namespace chorus
