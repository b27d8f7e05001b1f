// How a communicator comes to be.
#pragma once

#include <string>
#include <vector>

#include "nccl/group.hpp"

namespace chorus::nccl {

/// A rank on its way into a communicator.
struct Joining {
  std::string id = {};  ///< as in ncclUniqueId
  int rank = 0, ranks = 1, device = 0;
  Config config = {};
  std::string function = {};  ///< for the log
};

/// An id for any number of ranks. `this_process_only`: all ranks are threads of it.
[[nodiscard]] ncclUniqueId make_id(bool this_process_only);
/// What is in an id. Throws Fault for what is none of this library.
[[nodiscard]] std::string text_of(const ncclUniqueId& id);

/// The caller's configuration, then what the environment overrides.
[[nodiscard]] Config config_of(const ncclConfig_t* given, const Config& inherited = {});

/// Meets the others and completes `comm`. Blocks. `parent`: that it grows from, for its ranks.
void join(ncclComm& comm, const Joining& joining, Communicator* parent = nullptr);

/// A handle for that rank.
[[nodiscard]] ncclComm* handle_for(const Joining& joining);

/// Gives the caller the handle that the task makes, or null if the task is refused.
ncclResult_t add_maker(Task task, std::vector<Claim> claims);

}  // namespace chorus::nccl
