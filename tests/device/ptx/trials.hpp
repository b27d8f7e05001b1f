// Launches of several ranks over plain memory, without a driver: what the kernels' PTX is tried on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "machine.hpp"
#include "runtime/reference.hpp"

namespace ptx {

/// What goes wrong in a trial, and must be reported as such.
enum class Trouble : std::uint8_t { none, abort, mismatch, timeout };

struct Setup {
  std::string name;
  chorus::testing::Case test;
  const char* algorithm = "one_shot";
  int ranks = 2;
  bool words = false;  ///< else bulk
  bool direct = false;
  bool mixed = false;   ///< direct in the first phase alone
  bool exposed = true;  ///< direct: all reach all buffers
  /// Direct: buffers are in segments, as those of ranks that are processes.
  bool segments = false;
  bool relayed = false;  ///< ranks 0 and 1 do not reach each other, but their boxes
  bool apart = true;     ///< each rank on a device of its own
  std::uint32_t blocks = 2;
  std::uint32_t threads = 64;
  std::uint32_t phases = 1;
  bool chained = false;  ///< each phase works on what the one before left
  double scale = 1.0;
  Trouble trouble = Trouble::none;
  bool messages = false;  ///< chains of sends and receives between the two ranks
  bool ping = false;      ///< chorus_ping() in place of all that
};

[[nodiscard]] std::vector<Setup> setups();

struct Outcome {
  std::vector<std::string> findings;  ///< empty: all as it must be
  std::vector<bool> covered;          ///< of the instructions that order
  std::uint64_t turns = 0;
  std::uint64_t executed = 0;
};

/// Runs `launches` launches one after another on every rank.
[[nodiscard]] Outcome run(const Module& module, const Setup& setup, std::uint64_t seed,
                          int launches, std::uint64_t most_turns);

}  // namespace ptx
