// JSON as the programs of this folder write and read it.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "perf/machine.hpp"

namespace chorus::perf {

/// Ordered, so that a file reads as it is documented and diffs stay small.
using Json = nlohmann::ordered_json;

[[nodiscard]] inline Json machine_json(const Machine& machine) {
  return {{"cpu", machine.cpu},       {"cpus", machine.cpus},
          {"memory", machine.memory}, {"kernel", machine.kernel},
          {"system", machine.system}, {"tcp_congestion_control", machine.tcp_congestion_control}};
}

/// Throws Json::exception where a field is missing or of another type.
[[nodiscard]] inline Machine machine_from(const Json& json) {
  return {.cpu = json.at("cpu").get<std::string>(),
          .cpus = json.at("cpus").get<int>(),
          .memory = json.at("memory").get<std::string>(),
          .kernel = json.at("kernel").get<std::string>(),
          .system = json.at("system").get<std::string>(),
          .tcp_congestion_control = json.at("tcp_congestion_control").get<std::string>()};
}

}  // namespace chorus::perf
