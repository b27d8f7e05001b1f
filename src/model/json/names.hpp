// Names of enumerators in files, in the order of the enumerators. For model/ only.
#pragma once

#include <array>
#include <string_view>

namespace chorus {

inline constexpr std::array<std::string_view, 9> kNodeKindNames{
    "host", "package", "numa", "pcie_bridge", "gpu", "nic", "gpu_switch", "network_switch", "core"};
inline constexpr std::array<std::string_view, 3> kProvenanceNames{"declared", "table", "measured"};
inline constexpr std::array<std::string_view, 2> kActionNames{"copy", "reduce"};
inline constexpr std::array<std::string_view, 3> kBufferNames{"input", "output", "scratch"};

}  // namespace chorus
