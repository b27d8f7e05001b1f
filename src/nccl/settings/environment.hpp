// The variables that users of NCCL set, and what becomes of them here.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chorus/options.hpp"
#include "nccl/log.hpp"

namespace chorus::nccl {

/// What the environment (and NCCL's configuration files) says, read when a communicator is made.
struct Environment {
  Options options = {};  ///< Options::from_env(), with NCCL's variables where it is silent
  LogSettings log = {};
  std::optional<bool> blocking = {};  ///< NCCL_COMM_BLOCKING
  std::string meeting = {};           ///< NCCL_COMM_ID, "address:port"; empty: ids are made
  bool check_pointers = false;        ///< NCCL_CHECK_POINTERS
  bool many_ranks_per_gpu = false;    ///< NCCL_MULTI_RANK_GPU_ENABLE
  bool peer_access = true;            ///< not NCCL_P2P_DISABLE
  std::string fallback_library = {};  ///< CHORUS_NCCL_FALLBACK_LIBRARY
  std::string fallback = {};          ///< CHORUS_NCCL_FALLBACK

  /// Throws InputError naming the variable whose value is malformed.
  static Environment read();
};

/// One variable of NCCL as it is set: for the log and ncclParam….
struct SetVariable {
  std::string name, value;
  bool honoured = false;
};

/// All that are set, by the environment or a configuration file, in the order of their names.
[[nodiscard]] std::vector<SetVariable> set_variables();
/// Says, once per process and variable, which are set but have no effect here.
void tell_of_ignored_variables();
/// The names that have an effect.
[[nodiscard]] std::vector<std::string> honoured_names();
/// The value of one variable; nothing if it is not set.
[[nodiscard]] std::optional<std::string> value_of(std::string_view name);

/// The interface that NCCL_SOCKET_IFNAME's list means: prefixes, "=" before the list for whole
/// names, "^" for all others. `interfaces`: the names there are, in order. Nothing if none fits.
[[nodiscard]] std::optional<std::string> choose_interface(
    std::string_view list, const std::vector<std::string>& interfaces);
/// Those of this machine that are up and have an address, loopback last.
[[nodiscard]] std::vector<std::string> usable_interfaces();

/// In small letters, as NCCL compares the values of its variables.
[[nodiscard]] std::string lower(std::string text);

}  // namespace chorus::nccl
