// What the readers of foreign schedules throw beside InputError.
#pragma once

#include "chorus/error.hpp"

namespace chorus::formats {

/// A file that reads well but holds a wrong program: a deadlock, a race, a contribution reduced
/// twice, a result that is not what the collective promises; or a right one that no Schedule can
/// express. The sentence begins with file and line and names rank, threadblock and step.
class ProgramFault : public Error {
 public:
  using Error::Error;
};

}  // namespace chorus::formats
