#include "runtime/flight_recorder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/host.hpp"
#include "base/log.hpp"
#include "runtime/call.hpp"

namespace chorus {
namespace {

constexpr std::string_view kKindNames[] = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all",   "broadcast", "reduce",
    "gather",     "scatter",    "barrier",        "all_to_all_v", "send",      "recv"};

}  // namespace

std::string_view name_of(Call::Kind kind) { return kKindNames[static_cast<std::size_t>(kind)]; }

std::string signature(const Call& call) {
  if (call.kind == Call::Kind::barrier) return "barrier()";
  if (call.kind == Call::Kind::all_to_all_v) {
    return fmt::format("all_to_all_v({})", name_of(call.type));
  }
  std::string text =
      fmt::format("{}(count {}, {}", name_of(call.kind), call.count, name_of(call.type));
  if (combines(call.kind)) text += fmt::format(", {}", name_of(call.reduction.op));
  if (rooted(call.kind)) text += fmt::format(", root {}", call.peer);
  return text + ")";
}

FlightRecorder::Clock::time_point FlightRecorder::Clock::now() {
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  return time_point(std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec));
}

FlightRecorder::Label FlightRecorder::label(std::string_view schedule) {
  Label label;
  std::ranges::copy(schedule.substr(0, label.text.size() - 1), label.text.begin());
  return label;
}

std::uint64_t FlightRecorder::begin(std::uint64_t sequence, const Call& call,
                                    const Label& schedule) {
  Record& record = records_[next_ % kRecords];
  record.sequence = sequence;
  record.kind = call.kind;
  record.type = call.type;
  record.op = call.reduction.op;
  record.peer = call.peer;
  record.count = call.count;
  record.schedule = schedule;
  record.begun = Clock::now();
  record.finished = {};
  return next_++;
}

void FlightRecorder::note(std::uint64_t sequence, const Call& call, const Label& schedule) {
  Record& record = records_[begin(sequence, call, schedule) % kRecords];
  record.finished = record.begun;
}

void FlightRecorder::finish(std::uint64_t record) {
  if (next_ - record <= kRecords) records_[record % kRecords].finished = Clock::now();
}

Call FlightRecorder::call_of(const Record& record) {
  Call call{.kind = record.kind, .count = record.count, .type = record.type};
  call.reduction.op = record.op;
  call.peer = record.peer;
  return call;
}

std::vector<std::pair<std::uint64_t, std::string>> FlightRecorder::last_collectives(
    std::size_t count) const {
  std::vector<std::pair<std::uint64_t, std::string>> list;
  for (std::uint64_t i = next_; i > 0 && next_ - i < kRecords && list.size() < count; --i) {
    const Record& record = records_[(i - 1) % kRecords];
    if (record.kind == Call::Kind::send || record.kind == Call::Kind::recv) continue;
    list.emplace_back(record.sequence, signature(call_of(record)));
  }
  std::reverse(list.begin(), list.end());
  return list;
}

std::string FlightRecorder::dump(const std::string& directory, const Header& header) const {
  nlohmann::ordered_json json;
  json["format"] = "chorus-flight";
  json["version"] = 1;
  json["communicator"] = header.communicator;
  json["rank"] = header.rank;
  json["world_size"] = header.world_size;
  json["host"] = host_name();
  json["pid"] = ::getpid();
  json["failure"] = header.failure;
  json["waiting"] = header.waiting;
  json["calls"] = nlohmann::ordered_json::array();
  const auto microseconds = [](Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
  };
  for (std::uint64_t i = next_ > kRecords ? next_ - kRecords : 0; i < next_; ++i) {
    const Record& record = records_[i % kRecords];
    nlohmann::ordered_json entry;
    entry["sequence"] = record.sequence;
    entry["call"] = signature(call_of(record));
    if (record.kind == Call::Kind::send || record.kind == Call::Kind::recv) {
      entry["peer"] = record.peer;
    }
    entry["schedule"] = record.schedule.text.data();
    entry["begun_us"] = microseconds(record.begun);
    if (record.finished == Clock::time_point()) {
      entry["finished_us"] = nullptr;
    } else {
      entry["finished_us"] = microseconds(record.finished);
    }
    json["calls"].push_back(std::move(entry));
  }

  std::string name = header.communicator;
  std::replace_if(
      name.begin(), name.end(),
      [](unsigned char c) { return std::isalnum(c) == 0 && c != '-' && c != '_' && c != '.'; },
      '_');
  std::string path = fmt::format("{}/chorus-flight-{}-{}.json", directory, name, header.rank);
  std::ofstream file(path, std::ios::trunc);
  file << json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) << '\n';
  file.close();
  if (!file) {
    log(LogLevel::warn, "",
        fmt::format("cannot write the flight record {}: {}", path, std::strerror(errno)));
    return {};
  }
  return path;
}

}  // namespace chorus
