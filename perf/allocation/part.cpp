#include "perf/allocation/part.hpp"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "chorus/error.hpp"
#include "perf/allocation/allocation.hpp"
#include "perf/report/json.hpp"
#include "perf/session.hpp"
#include "perf/start_line.hpp"
#include "perf/wire.hpp"

namespace chorus::perf {

AllocationPart::AllocationPart(int rank, int world_size, int local_rank, int local_world_size)
    : rank_(rank),
      world_size_(world_size),
      local_rank_(local_rank),
      local_world_size_(local_world_size) {}

void AllocationPart::drain() {
  for (auto& [id, child] : workers_) child.drain();
}

std::string AllocationPart::start(const std::string& request) {
  const Json json = Json::parse(request);
  Command command;
  command.argv = json.at("argv").get<std::vector<std::string>>();
  command.argv.insert(command.argv.end(), {"--directory", scratch_.path()});
  command.environment =
      json.at("environment").get<std::vector<std::pair<std::string, std::string>>>();
  command.hidden = variables_of_launchers();
  const auto add = [&](const char* name, int value) {
    command.environment.emplace_back(name, std::to_string(value));
  };
  add("CHORUS_PERF_RANK", rank_);
  add("CHORUS_PERF_WORLD_SIZE", world_size_);
  add("CHORUS_RANK", rank_);
  add("CHORUS_WORLD_SIZE", world_size_);
  add("CHORUS_LOCAL_RANK", local_rank_);
  add("CHORUS_LOCAL_WORLD_SIZE", local_world_size_);
  workers_.emplace(json.at("id").get<int>(), Child(command));
  return Json{{"ok", true}}.dump();
}

std::string AllocationPart::perform(const std::string& request) {
  try {
    const Json json = Json::parse(request);
    const auto what = json.at("do").get<std::string>();
    if (what == "start") return start(request);
    if (what == "page") {
      if (local_rank_ != 0) return "{}";
      const std::string line = fmt::format("{}/line-{}", scratch_.path(), json.at("id").get<int>());
      StartLine::create(line);
      return Json{{"line", line}}.dump();
    }
    if (what == "status" || what == "end") {
      const auto found = workers_.find(json.at("id").get<int>());
      if (found == workers_.end()) return "{}";
      Child& child = found->second;
      child.drain();
      Json answer = {{"how", child.ended()}, {"words", words_of(child.output())}};
      if (what == "end") {
        if (child.ended().empty()) {
          end_all(family_of(child.pid()), std::chrono::milliseconds(json.at("patience_ms")));
        }
        workers_.erase(found);
      }
      return answer.dump(-1, ' ', false, Json::error_handler_t::replace);
    }
    if (what == "load") {
      if (local_rank_ == 0) {
        meter_.begin(json.at("pids").value(host_key(), std::vector<pid_t>()));
      }
      return "{}";
    }
    if (what == "loaded" && local_rank_ == 0) {
      const Ticks ticks = meter_.lap();
      return Json{{"total", ticks.total}, {"idle", ticks.idle}, {"ours", ticks.ours}}.dump();
    }
    return "{}";
  } catch (const std::exception& error) {
    return Json{{"error", error.what()}}.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
}

}  // namespace chorus::perf
