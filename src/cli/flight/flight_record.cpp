#include "cli/flight/flight_record.hpp"

#include <climits>

#include "model/json/reader.hpp"

namespace chorus {
namespace {

/// Of microseconds, whose products with 1000 are to fit.
constexpr std::uint64_t kLatestUs = UINT64_MAX / 1000;

FlightCall read_call(const json::Node& node) {
  return {.sequence = node.member("sequence").whole(0, UINT64_MAX),
          .text = node.member("call").text(),
          .schedule = node.member("schedule").text(),
          .begun_us = node.member("begun_us").whole(0, kLatestUs),
          .message = node.has("peer"),
          .finished = !node.member("finished_us").is_null()};
}

}  // namespace

Flight flight_from_json(const std::string& text, const std::string& path) {
  const std::string where = path + ": not a flight record";
  const json::Value value = json::parse(text, where);
  const json::Node root(value, path);
  json::expect_format(root, "chorus-flight", 1);
  Flight flight;
  // Records of earlier versions lack these two.
  if (root.has("job")) flight.job = root.member("job").text();
  if (root.has("written_us")) flight.written_us = root.member("written_us").whole(0, kLatestUs);
  flight.communicator = root.member("communicator").text();
  flight.host = root.member("host").text();
  flight.failure = root.member("failure").text();
  flight.waiting = root.member("waiting").text();
  flight.world_size = root.member("world_size").integer(1, INT_MAX);
  flight.rank = root.member("rank").integer(0, flight.world_size - 1);
  const json::Node calls = root.member("calls");
  for (std::size_t i = 0; i < calls.size(); ++i) flight.calls.push_back(read_call(calls.item(i)));
  return flight;
}

}  // namespace chorus
