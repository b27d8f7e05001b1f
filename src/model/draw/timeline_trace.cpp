#include <fmt/format.h>

#include <iterator>
#include <map>
#include <string_view>
#include <utility>

#include "model/draw/timeline.hpp"
#include "model/draw/timeline_lanes.hpp"
#include "model/json/reader.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {

std::string timeline_trace(const Simulation& simulation, const Schedule& schedule,
                           const Topology& topology) {
  // Perfetto draws events of one thread as nested calls, so each overlapping transfer between two
  // ranks gets a thread of its own: number destination + lane · world_size.
  std::map<std::pair<Rank, Rank>, LaneStack> lanes;
  std::map<std::pair<Rank, int>, std::string> threads;
  std::string events;
  const auto out = std::back_inserter(events);
  for (const TimelineEntry& entry : simulation.timeline) {
    const Transfer& transfer = entry.transfer;
    const int lane = lanes[{transfer.src, transfer.dst}].place(entry.begin_s, entry.end_s);
    const int thread = transfer.dst + lane * schedule.world_size;
    threads.try_emplace({transfer.src, thread}, fmt::format("to rank {}", transfer.dst));
    fmt::format_to(out,
                   ",\n{{\"name\":\"chunk {}\",\"cat\":\"{}\",\"ph\":\"X\",\"ts\":{:.6f},"
                   "\"dur\":{:.6f},\"pid\":{},\"tid\":{},\"args\":{{\"step\":{},\"chunk\":{}}}}}",
                   transfer.chunk, transfer.action == Action::copy ? "copy" : "reduce",
                   entry.begin_s * 1e6, (entry.end_s - entry.begin_s) * 1e6, transfer.src, thread,
                   entry.step, transfer.chunk);
  }
  std::string names;
  const auto name_out = std::back_inserter(names);
  for (Rank rank = 0; rank < topology.world_size(); ++rank) {
    const int node = topology.rank_nodes[static_cast<std::size_t>(rank)];
    fmt::format_to(
        name_out,
        ",\n{{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":{},\"args\":{{\"name\":{}}}}}", rank,
        json::quote(fmt::format("rank {} on {}", rank,
                                topology.nodes[static_cast<std::size_t>(node)].name)));
  }
  for (const auto& [where, name] : threads) {
    fmt::format_to(name_out,
                   ",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":{},\"tid\":{},"
                   "\"args\":{{\"name\":{}}}}}",
                   where.first, where.second, json::quote(name));
  }
  std::string all = names + events;
  if (!all.empty()) all.erase(0, 1);  // the first comma
  return fmt::format(
      "{{\"displayTimeUnit\":\"ns\",\n\"otherData\":{{\"schedule\":{},\"collective\":{},"
      "\"topology\":{}}},\n\"traceEvents\":[{}\n]}}\n",
      json::quote(schedule.name), json::quote(name_of(schedule.collective.kind)),
      json::quote(topology.name), all);
}

}  // namespace chorus
