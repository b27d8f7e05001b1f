// Coordinators that live in the process of a rank.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/secret.hpp"
#include "runtime/control/control.hpp"

namespace chorus {

/// Starts a Coordinator that stays in this process until all ranks have left (`joined_often`: as
/// long as the process), and returns its id. Throws as Coordinator does.
std::string host_coordinator(int world_size, std::string_view interface_name, std::uint16_t port,
                             const Secret& secret, bool joined_often);

/// Keeps a coordinator of this process's until all ranks have left.
void keep_coordinator(std::unique_ptr<Coordinator> coordinator);
/// The coordinator of that id, if it lives in this process, listens on these addresses, too; else
/// they are not asked for.
void listen_also(const std::string& id, const std::function<std::vector<std::string>()>& addresses);

}  // namespace chorus
