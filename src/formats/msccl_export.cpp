// msccl_programs(): a Schedule as programs of threadblocks, with at most one peer each way.
//
// As in lower(), everything is decided from the whole schedule, so both ends of a connection agree
// on the order of its messages, and a rank's steps are first put into one order that is right when
// run alone; threadblocks are cut out of it, and waits restore what of the order matters between
// them.
#include "formats/msccl_export.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.hpp"
#include "formats/msccl_replay.hpp"
#include "formats/msccl_xml.hpp"
#include "model/program/delivery.hpp"
#include "model/program/hazards.hpp"
#include "model/program/placement.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus::formats {
namespace {

/// Chunks per step that microsoft/msccl can load.
constexpr int kMostCount = 71;
/// Messages in flight that the programs must do with.
constexpr int kFewestSlots = 2;

using Order = std::pair<int, ChunkId>;  // step, then what is sent before what arrives; then chunk

/// One direction of a connection, at one rank.
using Port = std::pair<Rank, int>;  // peer, channel

struct Item {
  Order order;
  Rank peer = -1;     // breaks ties between sends of one chunk
  int producer = -1;  // the delivery that the step stores or sends on, or -1
  Port incoming{-1, 0};
  Port outgoing{-1, 0};
  Instruction instruction;  // what it does to memory; ports are told by the two above
  MscclStep step;
};

std::string_view name_in_file(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "allreduce";
    case CollectiveKind::all_gather:
      return "allgather";
    case CollectiveKind::all_to_all:
      return "alltoall";
    default:
      return name_of(kind);
  }
}

class Export {
 public:
  Export(const Schedule& schedule, const MscclXmlOptions& options, bool coalesce)
      : schedule_(schedule),
        options_(options),
        made_(deliveries(schedule, coalesce ? schedule.num_chunks : 1)) {
    unfusable_.resize(made_.list.size());
    const auto copies = [](const Delivery& d) { return d.action == Action::copy; };
    if (is_combining(schedule.collective.kind) &&
        std::any_of(made_.list.begin(), made_.list.end(), copies)) {
      copy_channel_ = options.channels;
    }
    spread();
  }

  MscclAlgo algo() {
    forward();
    places_ = Placement(schedule_, made_.list, [this](int i) { return stored(i); });
    const CollectiveKind kind = schedule_.collective.kind;
    MscclAlgo algo{.name = schedule_.name,
                   .protocol = options_.protocol,
                   .collective = std::string(name_in_file(kind)),
                   .channels = copy_channel_ + options_.channels,
                   .in_place = kind != CollectiveKind::all_to_all,
                   .out_of_place = true,
                   .min_bytes = options_.min_bytes,
                   .max_bytes = options_.max_bytes,
                   .gpus = {}};
    const int k = schedule_.num_chunks / num_blocks(kind, schedule_.world_size);
    Hazards hazards(schedule_);
    producers_.assign(schedule_.world_size, {});
    for (Rank rank = 0; rank < schedule_.world_size; ++rank) {
      MscclGpu& gpu = algo.gpus.emplace_back();
      gpu.input_chunks = input_blocks(schedule_.collective, schedule_.world_size, rank) * k;
      gpu.output_chunks = output_blocks(schedule_.collective, schedule_.world_size, rank) * k;
      gpu.scratch_chunks = places_.scratch_chunks(rank);
      algo.chunks = std::max({algo.chunks, gpu.input_chunks, gpu.output_chunks});
      cut(gpu, items(rank), rank, hazards);
    }
    return algo;
  }

  /// Where the stuck threadblocks receive and send on, do the two apart from now on. False if none
  /// of them does.
  bool part(const std::vector<StepRef>& stuck) {
    bool found = false;
    for (const StepRef& at : stuck) {
      for (const int producer : producers_[at.rank][at.block]) {
        if (producer < 0 || forwards_[producer] < 0) continue;
        unfusable_[producer] = 1;
        found = true;
      }
    }
    return found;
  }

 private:
  static Order order_of_send(const Delivery& d) { return {2 * d.step, d.chunk}; }
  static Order order_of_arrival(const Delivery& d) { return {2 * d.step + 1, d.chunk}; }

  [[nodiscard]] int channel(const Delivery& delivery) const {
    const int within = lane_[&delivery - made_.list.data()];
    return within + (delivery.action == Action::copy ? copy_channel_ : 0);
  }

  /// Messages of one step between the same ranks take turns on the channels.
  void spread() {
    std::map<std::tuple<int, Rank, std::vector<Rank>>, int> turn;  // by step, receiver, senders
    for (const Delivery& delivery : made_.list) {
      std::vector<Rank> senders;
      for (const Sender& sender : delivery.senders) senders.push_back(sender.rank);
      lane_.push_back(turn[{delivery.step, delivery.dst, std::move(senders)}]++ %
                      options_.channels);
    }
  }

  /// What one step can receive and send on: on the same channel, so with the same action, and
  /// nothing that waits for a later step to be sent.
  [[nodiscard]] bool may_forward(int producer, const Delivery& message) const {
    const Delivery& made = made_.list[producer];
    return channel(made) == channel(message) && made.next_send_step == message.step &&
           unfusable_[producer] == 0;
  }

  /// A threadblock has one peer each way: for each rank and channel, which peer it receives from
  /// goes with which it sends to, by the number of messages that could be fused.
  void pair_ports() {
    std::map<std::tuple<Rank, int, Rank, Rank>, int> votes;  // rank, channel, from, to
    for (const Delivery& delivery : made_.list) {
      for (const Sender& sender : delivery.senders) {
        if (sender.producer < 0 || !may_forward(sender.producer, delivery)) continue;
        const Delivery& made = made_.list[sender.producer];
        ++votes[{sender.rank, channel(delivery), made.senders.back().rank, delivery.dst}];
      }
    }
    std::vector<std::pair<int, std::tuple<Rank, int, Rank, Rank>>> ranking;
    for (const auto& [ports, count] : votes) ranking.emplace_back(-count, ports);
    std::sort(ranking.begin(), ranking.end());
    from_of_.clear();
    to_of_.clear();
    for (const auto& [_, ports] : ranking) {
      const auto [rank, channel, from, to] = ports;
      if (to_of_.contains({rank, channel, from}) || from_of_.contains({rank, channel, to}))
        continue;
      to_of_[{rank, channel, from}] = to;
      from_of_[{rank, channel, to}] = from;
    }
  }

  /// Decides for every message whether the step that brought its chunks sends it on.
  ///
  /// It may leave earlier than its step that way, but not before one that comes earlier in the
  /// order of its connection, by which the other end expects it.
  void forward() {
    pair_ports();
    forwards_.assign(made_.list.size(), -1);
    sent_.assign(schedule_.world_size, {});
    received_.assign(schedule_.world_size, {});
    std::map<std::tuple<Rank, Rank, int>, Order> last_sent;
    for (std::size_t i = 0; i < made_.list.size(); ++i) {
      const Delivery& delivery = made_.list[i];
      received_[delivery.dst].push_back(static_cast<int>(i));
      for (const Sender& sender : delivery.senders) {
        const int chan = channel(delivery);
        Order& last =
            last_sent.try_emplace({sender.rank, delivery.dst, chan}, Order{-1, -1}).first->second;
        if (fuses(sender, delivery) && order_of_arrival(made_.list[sender.producer]) > last) {
          forwards_[sender.producer] = static_cast<int>(i);
          last = order_of_arrival(made_.list[sender.producer]);
        } else {
          sent_[sender.rank].emplace_back(static_cast<int>(i), sender);
          last = order_of_send(delivery);
        }
      }
    }
  }

  [[nodiscard]] bool fuses(const Sender& sender, const Delivery& delivery) const {
    if (sender.producer < 0 || !may_forward(sender.producer, delivery)) return false;
    if (forwards_[sender.producer] >= 0) return false;
    const auto pair = from_of_.find({sender.rank, channel(delivery), delivery.dst});
    return pair != from_of_.end() &&
           pair->second == made_.list[sender.producer].senders.back().rank;
  }

  /// False if all that becomes of the value is that its own step sends it on.
  [[nodiscard]] bool stored(int delivery) const {
    const Delivery& made = made_.list[delivery];
    const int forwards = forwards_[delivery] >= 0 ? 1 : 0;
    return made.senders.size() > 1 || forwards == 0 || made.readers > forwards ||
           made.action == Action::copy;
  }

  [[nodiscard]] std::vector<Item> items(Rank rank) const {
    std::vector<Item> result;
    add_local_copies(rank, result);
    for (const auto& [delivery, sender] : sent_[rank]) add_send(delivery, sender, result);
    for (const int delivery : received_[rank]) add_arrival(delivery, result);
    std::stable_sort(result.begin(), result.end(), [](const Item& a, const Item& b) {
      return std::tie(a.order, a.peer) < std::tie(b.order, b.peer);
    });
    return result;
  }

  static Item item(const Delivery& delivery, Order order, StepType type) {
    Item result{.order = order, .instruction = {}, .step = {}};
    result.instruction.chunk = delivery.chunk;
    result.instruction.count = delivery.count;
    result.step.type = type;
    result.step.count = delivery.count;
    return result;
  }

  void add_send(int index, const Sender& sender, std::vector<Item>& result) const {
    const Delivery& delivery = made_.list[index];
    Item send = item(delivery, order_of_send(delivery), StepType::send);
    send.peer = delivery.dst;
    send.outgoing = {delivery.dst, channel(delivery)};
    send.step.source = places_.range(sender.buffer, delivery.chunk, sender.rank);
    send.step.destination = {Buffer::output, 0};  // of no meaning to a sender
    send.step.level = delivery.step;
    send.instruction.sources = {{.incoming = -1, .local = send.step.source}};
    send.instruction.sends = {0};
    result.push_back(std::move(send));
  }

  /// A step for each message; the first reduces into the rank's own value, the last sends on.
  void add_arrival(int index, std::vector<Item>& result) const {
    const Delivery& delivery = made_.list[index];
    const bool reduces = delivery.action == Action::reduce;
    LocalRange own = delivery.action == Action::reduce
                         ? places_.range(delivery.own, delivery.chunk, delivery.dst)
                         : LocalRange{};
    for (std::size_t s = 0; s < delivery.senders.size(); ++s) {
      const bool last = s + 1 == delivery.senders.size();
      const int forward = last ? forwards_[index] : -1;
      Item arrival = item(delivery, order_of_arrival(delivery), StepType::receive);
      arrival.peer = static_cast<Rank>(s);  // keeps the order of folding
      arrival.producer = last ? index : -1;
      arrival.incoming = {delivery.senders[s].rank, channel(delivery)};
      Instruction& instruction = arrival.instruction;
      if (reduces) instruction.sources.push_back({.incoming = -1, .local = own});
      instruction.sources.push_back({.incoming = 0, .local = {}});
      const bool keeps = !last || stored(index);
      if (keeps) {
        instruction.destination = places_.range(delivery.destination, delivery.chunk, delivery.dst);
      }
      if (forward >= 0) {
        const Delivery& message = made_.list[forward];
        arrival.outgoing = {message.dst, channel(message)};
        arrival.step.level = message.step;
        instruction.sends = {0};
      }
      arrival.step.type = type_of(reduces, keeps, forward >= 0);
      // What a step does not touch still has to be some place of the rank.
      arrival.step.destination = instruction.destination.value_or(own);
      arrival.step.source = reduces ? own : arrival.step.destination;
      if (keeps) own = *instruction.destination;
      result.push_back(std::move(arrival));
    }
  }

  static StepType type_of(bool reduces, bool keeps, bool forwards) {
    if (!reduces) return forwards ? StepType::receive_copy_send : StepType::receive;
    if (!forwards) return StepType::receive_reduce_copy;
    return keeps ? StepType::receive_reduce_copy_send : StepType::receive_reduce_send;
  }

  /// What the rank already has where it is wanted, or is sent on from its output.
  void add_local_copies(Rank rank, std::vector<Item>& result) const {
    std::vector<ChunkId> chunks = own_chunks(schedule_, made_.list, received_[rank], rank);
    for (const auto& [of, chunk] : made_.early_copies) {
      if (of == rank) chunks.push_back(chunk);
    }
    std::sort(chunks.begin(), chunks.end());
    chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
    for (const ChunkId chunk : chunks) {
      const LocalRange in = places_.range(Buffer::input, chunk, rank);
      const LocalRange out = places_.range(Buffer::output, chunk, rank);
      if (!result.empty()) {
        Item& last = result.back();
        if (last.instruction.chunk + last.step.count == chunk && last.step.count < kMostCount &&
            last.step.source.index + last.step.count == in.index &&
            last.step.destination.index + last.step.count == out.index) {
          ++last.step.count;
          ++last.instruction.count;
          continue;
        }
      }
      Delivery one;
      one.chunk = chunk;
      Item copy = item(one, {-1, chunk}, StepType::copy);
      copy.step.source = in;
      copy.step.destination = out;
      copy.instruction.sources = {{.incoming = -1, .local = in}};
      copy.instruction.destination = out;
      result.push_back(std::move(copy));
    }
  }

  /// The threadblock of each item: one per connection, or per pair of them that pair_ports() made.
  [[nodiscard]] std::vector<int> blocks_of(const std::vector<Item>& items, Rank rank,
                                           MscclGpu& gpu) const {
    struct Key {
      Rank send, receive;
      int channel;
      auto operator<=>(const Key&) const = default;
    };
    const auto key = [&](const Item& item) -> Key {
      const int channel = item.outgoing.first >= 0 ? item.outgoing.second : item.incoming.second;
      Key result{item.outgoing.first, item.incoming.first, channel};
      if (const auto from = from_of_.find({rank, channel, result.send}); from != from_of_.end()) {
        result.receive = from->second;
      } else if (const auto to = to_of_.find({rank, channel, result.receive}); to != to_of_.end()) {
        result.send = to->second;
      }
      return result;
    };
    std::map<Key, int> index;
    std::vector<Key> keys;
    for (const Item& item : items) {
      keys.push_back(key(item));
      index.try_emplace(keys.back(), 0);
    }
    for (auto& [of, id] : index) {
      id = static_cast<int>(gpu.blocks.size());
      gpu.blocks.push_back(
          {.send = of.send, .receive = of.receive, .channel = of.channel, .steps = {}});
    }
    std::vector<int> result;
    for (const Key& of : keys) result.push_back(index.at(of));
    return result;
  }

  void cut(MscclGpu& gpu, const std::vector<Item>& items, Rank rank, Hazards& hazards) {
    const std::vector<int> block_of = blocks_of(items, rank, gpu);
    producers_[rank].assign(gpu.blocks.size(), {});
    hazards.begin_rank(rank);
    std::vector<int> step_of(items.size());
    // [block]: how many steps of each are known to be done once its latest is; the same by item.
    std::vector<std::vector<int>> known(gpu.blocks.size(), std::vector<int>(gpu.blocks.size()));
    std::vector<std::vector<int>> clocks;
    for (std::size_t i = 0; i < items.size(); ++i) {
      const int b = block_of[i];
      Hazards::Before before = hazards.add(static_cast<int>(i), items[i].instruction);
      std::vector<int> needed = std::move(before.read);
      needed.insert(needed.end(), before.overwritten.begin(), before.overwritten.end());
      std::sort(needed.begin(), needed.end(), std::greater<>());
      needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
      auto& steps = gpu.blocks[b].steps;
      std::vector<int> waits;
      for (const int other : needed) {
        if (block_of[other] == b || known[b][block_of[other]] > step_of[other]) continue;
        waits.push_back(other);
        for (std::size_t c = 0; c < known[b].size(); ++c) {
          known[b][c] = std::max(known[b][c], clocks[other][c]);
        }
      }
      MscclStep step = items[i].step;
      for (std::size_t w = 0; w < waits.size(); ++w) {
        const int other = waits[w];
        gpu.blocks[block_of[other]].steps[step_of[other]].awaited = true;
        const bool last = w + 1 == waits.size();
        MscclStep nop{.type = StepType::nop,
                      .source = {Buffer::input, -1},
                      .destination = {Buffer::output, -1}};
        MscclStep& waiting = last ? step : nop;
        waiting.waits_block = block_of[other];
        waiting.waits_step = step_of[other];
        if (!last) steps.push_back(nop);
      }
      step_of[i] = static_cast<int>(steps.size());
      steps.push_back(step);
      known[b][b] = static_cast<int>(steps.size());
      clocks.push_back(known[b]);
      producers_[rank][b].push_back(items[i].producer);
    }
  }

  const Schedule& schedule_;
  const MscclXmlOptions& options_;
  Deliveries made_;
  int copy_channel_ = 0;                                 // first of those that copies use
  std::vector<int> lane_;                                // by delivery: which of its channels
  std::vector<char> unfusable_;                          // by delivery
  std::vector<int> forwards_;                            // by delivery: message or -1
  std::map<std::tuple<Rank, int, Rank>, Rank> from_of_;  // rank, channel, to: from
  std::map<std::tuple<Rank, int, Rank>, Rank> to_of_;    // rank, channel, from: to
  Placement places_;
  std::vector<std::vector<int>> received_;                 // by rank: deliveries
  std::vector<std::vector<std::pair<int, Sender>>> sent_;  // by rank: apart from receiving
  std::vector<std::vector<std::vector<int>>> producers_;   // [rank][block]: as in Item
};

int longest(const MscclAlgo& algo) {
  int most = 0;
  for (const MscclGpu& gpu : algo.gpus) {
    for (const MscclBlock& block : gpu.blocks) {
      for (const MscclStep& step : block.steps) most = std::max(most, step.count);
    }
  }
  return most;
}

}  // namespace

MscclAlgo msccl_programs(const Schedule& schedule, const MscclXmlOptions& options) {
  if (!schedule.symmetry.empty()) return msccl_programs(expanded(schedule), options);
  if (const auto fault = first_fault(schedule)) {
    throw InputError(fmt::format("'{}' is wrong and is not written: {}", schedule.name, *fault));
  }
  if (schedule.collective.kind == CollectiveKind::barrier) {
    throw InputError(fmt::format("'{}' is a barrier, which MSCCL cannot express", schedule.name));
  }
  // Receiving and sending in one step can close a circle of ranks that all wait for room. Then it
  // is given up where the circle is.
  for (const bool coalesce : {true, false}) {
    Export attempt(schedule, options, coalesce);
    for (bool again = true; again;) {
      MscclAlgo algo = attempt.algo();
      if (coalesce && longest(algo) > kMostCount) break;
      const std::vector<StepRef> waiting = stuck(algo, kFewestSlots);
      if (waiting.empty()) return algo;
      again = attempt.part(waiting);
    }
  }
  CHORUS_CHECK(false, "the threadblocks of a correct schedule wait for each other");
  return {};
}

}  // namespace chorus::formats
