// What users of NCCL set: in the environment, or in NCCL's configuration files.
#pragma once

#include <map>
#include <string>

namespace chorus {

struct NcclValue {
  std::string value;
  std::string source;  ///< "environment", or the path of a file
};

/// Every NCCL_* that is set, by name. The environment wins over the file of NCCL_CONF_FILE (or
/// ~/.nccl.conf), which wins over /etc/nccl.conf.
[[nodiscard]] std::map<std::string, NcclValue> nccl_values();

}  // namespace chorus
