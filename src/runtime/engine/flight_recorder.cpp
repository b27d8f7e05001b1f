#include "runtime/engine/flight_recorder.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <nlohmann/json.hpp>

#include "base/host.hpp"
#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/options/flight_files.hpp"

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

FlightRecorder::Label FlightRecorder::label(std::string_view schedule) {
  Label label;
  std::ranges::copy(schedule.substr(0, label.text.size() - 1), label.text.begin());
  return label;
}

FlightRecorder::Record& FlightRecorder::add(std::uint64_t sequence, const Call& call,
                                            const Label& schedule) {
  Record& record = records_[next_++ % kRecords];
  record.sequence = sequence;
  record.kind = call.kind;
  record.type = call.type;
  record.op = call.reduction.op;
  record.peer = call.peer;
  record.count = call.count;
  record.schedule = schedule;
  return record;
}

std::uint64_t FlightRecorder::begin(std::uint64_t sequence, const Call& call,
                                    const Label& schedule) {
  Record& record = add(sequence, call, schedule);
  record.begun = ticks_.now();
  record.finished = 0;
  record.coarse = false;
  return next_ - 1;
}

void FlightRecorder::note(std::uint64_t sequence, const Call& call, const Label& schedule) {
  Record& record = add(sequence, call, schedule);
  timespec time{};
  ::clock_gettime(CLOCK_REALTIME_COARSE, &time);
  record.begun = static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
                 static_cast<std::uint64_t>(time.tv_nsec);
  record.finished = record.begun;
  record.coarse = true;
}

void FlightRecorder::finish(std::uint64_t record) {
  if (next_ - record <= kRecords) records_[record % kRecords].finished = ticks_.now();
}

void FlightRecorder::finish_brief(std::uint64_t record) {
  if (next_ - record > kRecords) return;
  Record& brief = records_[record % kRecords];
  brief.finished = brief.begun;
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

std::string FlightRecorder::dump(const std::string& flight_dir, const Header& header) const {
  const Ticks::Scale scale(ticks_);
  std::int64_t latest_us = 0;  // a coarse time is that of the kernel's last tick
  const auto microseconds = [&](std::uint64_t time, bool coarse) {
    const std::int64_t us =
        coarse ? static_cast<std::int64_t>(time / 1000) : scale.unix_ns(time) / 1000;
    return coarse ? std::max(us, latest_us) : us;
  };
  nlohmann::ordered_json json;
  json["format"] = "chorus-flight";
  json["version"] = 1;
  json["job"] = header.job;
  json["communicator"] = header.communicator;
  json["rank"] = header.rank;
  json["world_size"] = header.world_size;
  json["host"] = host_name();
  json["pid"] = ::getpid();
  json["failure"] = header.failure;
  json["waiting"] = header.waiting;
  json["written_us"] = microseconds(ticks_.now(), false);
  json["calls"] = nlohmann::ordered_json::array();
  for (std::uint64_t i = next_ > kRecords ? next_ - kRecords : 0; i < next_; ++i) {
    const Record& record = records_[i % kRecords];
    nlohmann::ordered_json entry;
    entry["sequence"] = record.sequence;
    entry["call"] = signature(call_of(record));
    if (record.kind == Call::Kind::send || record.kind == Call::Kind::recv) {
      entry["peer"] = record.peer;
    }
    entry["schedule"] = record.schedule.text.data();
    latest_us = std::max(latest_us, microseconds(record.begun, record.coarse));
    entry["begun_us"] = latest_us;
    if (record.finished == 0) {
      entry["finished_us"] = nullptr;
    } else {
      entry["finished_us"] = microseconds(record.finished, record.coarse);
    }
    json["calls"].push_back(std::move(entry));
  }
  const std::string text =
      json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
  try {
    return write_flight(flight_dir, header.job, header.communicator, header.rank, text);
  } catch (const InputError& error) {
    log(LogLevel::warn, "", fmt::format("no flight record: {}", error.what()));
    return {};
  }
}

}  // namespace chorus
