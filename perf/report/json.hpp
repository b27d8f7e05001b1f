// What records of this folder have in common, as JSON.
#pragma once

#include <string>

#include "perf/report/machine.hpp"
#include "perf/report/ordered_json.hpp"

namespace chorus::perf {

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
