#include "nccl/schedule_by_name.hpp"

#include <utility>

#include "runtime/communicator/impl.hpp"
#include "runtime/gpu/communicator.hpp"

namespace chorus {

ScheduleByName::ScheduleByName(Communicator& communicator, std::string name)
    : communicator_(DeviceCommunicator::inside(communicator)) {
  communicator_.schedule_name = std::move(name);
}

ScheduleByName::~ScheduleByName() { communicator_.schedule_name.clear(); }

std::optional<std::string> ScheduleByName::why_not(const Communicator& communicator,
                                                   Call::Kind kind, std::string_view name) {
  return DeviceCommunicator::inside(communicator)
      .selector->why_not(static_cast<CollectiveKind>(kind), name);
}

}  // namespace chorus
