#include "formats/mscclpp_plan.hpp"

#include <fmt/format.h>

#include <map>
#include <string_view>
#include <vector>

#include "chorus/error.hpp"
#include "formats/msccl_export.hpp"
#include "formats/msccl_replay.hpp"
#include "model/json/reader.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus::formats {
namespace {

std::string local(LocalRange range, int count) {
  return fmt::format(R"({{"type": "{}", "index": {}, "size": {}}})", letter(range.buffer),
                     range.index, count);
}

/// One rank's plan, as it grows.
struct Gpu {
  std::vector<Rank> channels;     // peer of each
  std::vector<Rank> buffers;      // whose scratch each remote buffer is
  std::map<Rank, int> buffer_of;  // rank to index into buffers
  int scratch = 0;
  int semaphores = 0;
};

/// What a threadblock has of one connection.
struct PlanEnd {
  int channel = -1;       // index into Gpu::channels
  std::vector<int> slot;  // [message]: place in the receiver's scratch
};

class Plan {
 public:
  explicit Plan(const MscclAlgo& algo) : algo_(algo), gpus_(algo.gpus.size()) {
    for (std::size_t r = 0; r < gpus_.size(); ++r) gpus_[r].scratch = algo.gpus[r].scratch_chunks;
    for (const Connection& connection : connections(algo, algo.name)) connect(connection);
    for (std::size_t r = 0; r < gpus_.size(); ++r) number_semaphores(static_cast<Rank>(r));
  }

  std::string gpu(Rank rank) {
    std::string blocks;
    for (int b = 0; b < static_cast<int>(algo_.gpus[rank].blocks.size()); ++b) {
      blocks += fmt::format("{}\n    {}", b == 0 ? "" : ",", block(rank, b));
    }
    const Gpu& gpu = gpus_[rank];
    std::string buffers;
    for (const Rank of : gpu.buffers) {
      buffers += fmt::format(R"({}{{"rank": {}, "type": "s", "access_channel_types": ["memory"]}})",
                             buffers.empty() ? "" : ", ", of);
    }
    std::string semaphores;
    for (int i = 0; i < gpu.semaphores; ++i) {
      semaphores += fmt::format(R"({}{{"init_value": 0}})", i == 0 ? "" : ", ");
    }
    const std::string channels =
        gpu.channels.empty() ? ""
                             : fmt::format(R"({{"channel_type": "memory", "connected_to": [{}]}})",
                                           fmt::join(gpu.channels, ", "));
    const MscclGpu& sizes = algo_.gpus[rank];
    return fmt::format(
        "{{\"id\": {}, \"input_chunks\": {}, \"output_chunks\": {}, \"scratch_chunks\": {},\n"
        "   \"threadblocks\": [{}],\n   \"channels\": [{}],\n   \"remote_buffers\": [{}],\n"
        "   \"semaphores\": [{}]}}",
        rank, sizes.input_chunks, sizes.output_chunks, gpu.scratch, blocks, channels, buffers,
        semaphores);
  }

 private:
  using BlockKey = std::pair<Rank, int>;
  using StepKey = std::pair<BlockKey, int>;

  /// Channels pair up by their order among those between the same two ranks; both ends are added at
  /// once, so the orders agree.
  void connect(const Connection& connection) {
    PlanEnd& out = outgoing_[{connection.src, connection.sender}];
    PlanEnd& in = incoming_[{connection.dst, connection.receiver}];
    Gpu& src = gpus_[connection.src];
    Gpu& dst = gpus_[connection.dst];
    out.channel = static_cast<int>(src.channels.size());
    src.channels.push_back(connection.dst);
    in.channel = static_cast<int>(dst.channels.size());
    dst.channels.push_back(connection.src);
    if (src.buffer_of.try_emplace(connection.dst, static_cast<int>(src.buffers.size())).second) {
      src.buffers.push_back(connection.dst);
    }
    for (const MscclStep& step : algo_.gpus[connection.src].blocks[connection.sender].steps) {
      if (!sends(step.type)) continue;
      out.slot.push_back(dst.scratch);
      in.slot.push_back(dst.scratch);
      dst.scratch += step.count;
    }
  }

  /// One semaphore per wait: the awaited step releases it, the waiting one acquires it.
  void number_semaphores(Rank rank) {
    const auto& blocks = algo_.gpus[rank].blocks;
    for (int b = 0; b < static_cast<int>(blocks.size()); ++b) {
      for (int s = 0; s < static_cast<int>(blocks[b].steps.size()); ++s) {
        const MscclStep& step = blocks[b].steps[s];
        if (step.waits_block < 0) continue;
        const int semaphore = gpus_[rank].semaphores++;
        acquired_[{{rank, b}, s}] = semaphore;
        released_[{{rank, step.waits_block}, step.waits_step}].push_back(semaphore);
      }
    }
  }

  /// Ops of one threadblock, with a nop (all threads meet) between any two.
  class Ops {
   public:
    void add(const std::string& op) {
      text_ +=
          fmt::format("{}\n      {}", text_.empty() ? "" : ",\n      {\"name\": \"nop\"},", op);
    }
    void channel(std::string_view name, int index) {
      add(fmt::format(R"({{"name": "{}", "channel_ids": [{}], "channel_type": "memory"}})", name,
                      index));
    }
    void move(std::string_view name, const std::string& sources, const std::string& destination,
              std::string_view rest) {
      add(fmt::format(R"({{"name": "{}", "src_buff": [{}], "dst_buff": [{}]{}}})", name, sources,
                      destination, rest));
    }
    void semaphore(std::string_view name, int id) {
      add(fmt::format(R"({{"name": "{}", "semaphore_ids": [{}]}})", name, id));
    }
    [[nodiscard]] const std::string& text() const { return text_; }

   private:
    std::string text_;
  };

  std::string block(Rank rank, int b) {
    const MscclBlock& block = algo_.gpus[rank].blocks[b];
    const auto in = incoming_.find({rank, b});
    const auto out = outgoing_.find({rank, b});
    std::vector<int> channels;  // op channel ids are indices into this
    int in_channel = -1;
    int out_channel = -1;
    if (in != incoming_.end()) {
      in_channel = static_cast<int>(channels.size());
      channels.push_back(in->second.channel);
    }
    if (out != outgoing_.end()) {
      out_channel = static_cast<int>(channels.size());
      channels.push_back(out->second.channel);
    }
    Ops ops;
    // The receiver's scratch is free once its kernel runs: not before may anything be put there.
    if (in_channel >= 0) ops.channel("signal", in_channel);
    if (out_channel >= 0) ops.channel("wait", out_channel);
    std::size_t received = 0;
    std::size_t sent = 0;
    for (int s = 0; s < static_cast<int>(block.steps.size()); ++s) {
      const MscclStep& step = block.steps[s];
      const StepKey key{{rank, b}, s};
      if (step.waits_block >= 0) ops.semaphore("sem_acquire", acquired_.at(key));
      LocalRange slot;
      if (receives(step.type)) {
        ops.channel("wait", in_channel);
        slot = {Buffer::scratch, in->second.slot[received++]};
      }
      const LocalRange result = fold(step, slot, ops);
      if (sends(step.type)) {
        ops.move("put", local(result, step.count),
                 fmt::format(R"({{"buffer_id": 0, "index": {}, "size": {}}})",
                             out->second.slot[sent++], step.count),
                 R"(, "channel_type": "memory")");
        ops.channel("signal", out_channel);
      }
      for (const int semaphore : released_[key]) ops.semaphore("sem_release", semaphore);
    }
    return block_text(b, ops.text(), channels,
                      out == outgoing_.end() ? -1 : gpus_[rank].buffer_of.at(block.send));
  }

  /// What the step does to this rank's memory; returns where what it sends lies.
  static LocalRange fold(const MscclStep& step, LocalRange slot, Ops& ops) {
    const int count = step.count;
    const auto reduce = [&](LocalRange a, LocalRange b, LocalRange to) {
      ops.move("re", local(a, count) + ", " + local(b, count), local(to, count),
               R"(, "reduce_op": "sum")");
      return to;
    };
    switch (step.type) {
      case StepType::send:
        return step.source;
      case StepType::receive:
      case StepType::receive_copy_send:
        ops.move("copy", local(slot, count), local(step.destination, count), "");
        return slot;
      case StepType::receive_reduce_send:
        return reduce(step.source, slot, slot);
      case StepType::receive_reduce_copy:
      case StepType::receive_reduce_copy_send:
        return reduce(step.source, slot, step.destination);
      case StepType::copy:
        ops.move("copy", local(step.source, count), local(step.destination, count), "");
        return step.destination;
      case StepType::reduce:
        return reduce(step.destination, step.source, step.destination);
      case StepType::nop:
        break;
    }
    return {};
  }

  static std::string block_text(int id, const std::string& ops, const std::vector<int>& channels,
                                int buffer) {
    const std::string channel_list =
        channels.empty() ? ""
                         : fmt::format(R"({{"channel_type": "memory", "channel_ids": [{}]}})",
                                       fmt::join(channels, ", "));
    const std::string buffer_list =
        buffer < 0
            ? ""
            : fmt::format(R"({{"access_channel_type": "memory", "remote_buffer_ids": [{}]}})",
                          buffer);
    return fmt::format(
        "{{\"id\": {}, \"ops\": [{}],\n     \"channels\": [{}], \"remote_buffer_refs\": [{}]}}", id,
        ops, channel_list, buffer_list);
  }

  const MscclAlgo& algo_;
  std::vector<Gpu> gpus_;
  std::map<BlockKey, PlanEnd> incoming_;
  std::map<BlockKey, PlanEnd> outgoing_;
  std::map<StepKey, int> acquired_;
  std::map<StepKey, std::vector<int>> released_;
};

}  // namespace

std::string to_mscclpp_plan(const Schedule& schedule, const MscclppOptions& options) {
  if (!schedule.symmetry.empty()) return to_mscclpp_plan(expanded(schedule), options);
  switch (schedule.collective.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      break;
    default:
      throw InputError(
          fmt::format("'{}' is a {}, and an MSCCL++ plan needs input and output on every rank: "
                      "all_reduce, all_gather, reduce_scatter and all_to_all can be written",
                      schedule.name, name_of(schedule.collective.kind)));
  }
  const MscclAlgo algo = msccl_programs(schedule, {});
  Plan plan(algo);
  std::string gpus;
  for (Rank rank = 0; rank < schedule.world_size; ++rank) {
    gpus += fmt::format("{}\n  {}", rank == 0 ? "" : ",", plan.gpu(rank));
  }
  const std::string collective =
      algo.collective == "reduce_scatter" ? "reducescatter" : algo.collective;
  return fmt::format(
      "{{\n \"name\": {},\n \"collective\": \"{}\",\n \"protocol\": \"Simple\",\n"
      " \"inplace\": false,\n \"reuse_resources\": false,\n \"gpus\": [{}\n ],\n"
      " \"num_threads_per_block\": 1024,\n \"use_double_scratch_buffer\": false,\n"
      " \"buffer_alignment\": 16,\n \"min_message_size\": {},\n \"max_message_size\": {}\n}}\n",
      json::quote(schedule.name), collective, gpus, options.min_bytes, options.max_bytes);
}

}  // namespace chorus::formats
