// chorus doctor: what a machine has that will slow a job down or stop it, before there is a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/discover/nvml/nvml.hpp"

namespace chorus::doctor {

enum class Severity : std::uint8_t {
  note,     ///< worth knowing; nothing needs to be done
  warning,  ///< will cost speed, or stop some jobs
  fault,    ///< something that is there does not work
};
[[nodiscard]] std::string_view name_of(Severity severity);

struct Finding {
  std::string check;  ///< stable name for scripts: "memlock"
  Severity severity = Severity::note;
  std::string seen;    ///< what was found, with names and numbers
  std::string why;     ///< why it matters
  std::string remedy;  ///< the command or setting that mends it; empty if there is none
  std::vector<std::string> hosts = {};  ///< of a job, on which it was found; empty: this machine

  bool operator==(const Finding&) const = default;
};

/// Where to look.
struct Machine {
  /// The directory that holds proc, sys, etc, dev and usr: "/", or a copy of another machine's.
  std::string root = "/";
  NvmlReport gpus;
};

/// Every check, in a fixed order, on whatever of the files is there: a missing one is no finding.
/// Files are read with suspicion: those of a copy may hold anything.
[[nodiscard]] std::vector<Finding> examine(const Machine& machine);

/// The worst; note if there is none.
[[nodiscard]] Severity worst(const std::vector<Finding>& findings);

/// "fault   memlock: …" with reason and remedy indented below; what is well in one line.
[[nodiscard]] std::string text_of(const std::vector<Finding>& findings);
/// chorus-doctor of docs/doctor.md.
[[nodiscard]] std::string json_of(const std::vector<Finding>& findings);

}  // namespace chorus::doctor
