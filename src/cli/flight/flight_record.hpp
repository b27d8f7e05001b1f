// Flight records as `chorus flight` reads them (format: docs/formats.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace chorus {

struct FlightCall {
  std::uint64_t sequence = 0;
  std::string text, schedule;
  std::uint64_t begun_us = 0;
  bool message = false;  // send or recv: numbered per pair, not per communicator
  bool finished = false;
};

struct Flight {
  std::string job, communicator, host, failure, waiting;
  std::uint64_t written_us = 0;
  int rank = 0, world_size = 0;
  std::vector<FlightCall> calls;
};

/// Throws InputError beginning with `path` for anything that is no flight record.
[[nodiscard]] Flight flight_from_json(const std::string& text, const std::string& path);

}  // namespace chorus
