// Runs a function on N ranks: as threads of this process or as processes of their own.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "chorus/communicator.hpp"

namespace chorus::testing {

enum class Ranks { threads, processes };

struct World {
  int size = 2;
  Ranks ranks = Ranks::threads;
  Options options = {};
  /// Processes only: this process tells the coordinator of ranks that end, as `chorus run` does.
  /// Otherwise the coordinator learns it from their connections alone.
  bool launcher = false;
  int timeout_s = 120;  ///< after which a process that has not ended is killed
  /// Processes only: called by the parent once all have been told the id.
  std::function<void(const std::vector<pid_t>&)> meanwhile = {};
  /// Processes only: filled with the time at which each rank was seen to have ended.
  std::vector<std::chrono::steady_clock::time_point>* ended = nullptr;
};

/// Ranks that are threads, with slots so small that messages take many, and no flight records.
World threads(int size, const std::string& transports = "shm,tcp");

/// What became of each rank: empty if `body` returned, else what it threw (or how the process
/// ended).
using Outcomes = std::vector<std::string>;

/// Joins `world.size` ranks and runs `body` on each.
Outcomes run_world(const World& world, const std::function<void(Communicator&)>& body);

/// The same, before joining: `body` is given the id and its rank.
Outcomes run_ranks(const World& world, const std::function<void(const UniqueId&, Rank)>& body);

/// Fails the current test for every rank that did not end well.
void expect_all_well(const Outcomes& outcomes);

}  // namespace chorus::testing
