// lower(): cuts a schedule into one Program per rank.
//
// Everything is decided from the whole schedule, so both ends of a message agree on its length and
// place in its port's order: by step, then by chunk. A rank's instructions are first put into one
// order that is right when run alone; lanes are cut out of it, and `after` restores what of the
// order matters between them.
#include <algorithm>
#include <cstdint>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/check.hpp"
#include "base/disjoint_sets.hpp"
#include "base/index.hpp"
#include "model/program/abstract_run.hpp"
#include "model/program/delivery.hpp"
#include "model/program/hazards.hpp"
#include "model/program/placement.hpp"
#include "model/program/program.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

/// Fewest slots per connection that Options allows.
constexpr int kFewestSlots = 2;

/// Position of an instruction in its rank's order: step, then what is sent before what arrives.
using Order = std::pair<int, ChunkId>;

Order order_of_send(const Delivery& delivery) { return {2 * delivery.step, delivery.chunk}; }
Order order_of_arrival(const Delivery& delivery) { return {2 * delivery.step + 1, delivery.chunk}; }

/// An instruction before it is given to a lane.
struct Placed {
  Order order;
  Rank peer = -1;     // breaks ties between sends of one chunk
  int delivery = -1;  // arrivals: which
  Instruction instruction;

  [[nodiscard]] int step() const { return order.first < 0 ? -1 : order.first / 2; }
};

bool copies(const Schedule& schedule) {
  return std::any_of(schedule.steps.begin(), schedule.steps.end(), [](const Step& step) {
    return std::any_of(step.begin(), step.end(),
                       [](const Transfer& t) { return t.action == Action::copy; });
  });
}

class Lowering {
 public:
  Lowering(const Schedule& schedule, Deliveries made)
      : schedule_(schedule), made_(std::move(made)) {
    unfusable_.resize(made_.list.size());
    if (is_combining(schedule.collective.kind)) {
      copy_channel_ = 1;
      num_channels_ = copies(schedule) ? 2 : 1;
    }
  }

  /// Programs in which every message that may be is sent on by the instruction that receives it.
  std::vector<Program> programs() {
    forward();
    places_ = Placement(schedule_, made_.list, [this](int i) { return stored(i); });
    collect();
    std::vector<Program> result;
    Hazards hazards(schedule_);
    delivery_at_.resize(schedule_.world_size);
    for (Rank rank = 0; rank < schedule_.world_size; ++rank) {
      result.push_back(program(rank, hazards));
    }
    return result;
  }

  /// The program of one rank, all of whose deliveries and messages are known, the others' perhaps
  /// not: one instruction per delivery and per message.
  Program program_alone(Rank rank) {
    forwards_.assign(made_.list.size(), {});
    places_ = Placement(schedule_, made_.list, [](int) { return true; });
    received_.resize(schedule_.world_size);
    sent_.resize(schedule_.world_size);
    for (std::size_t i = 0; i < made_.list.size(); ++i) {
      const Delivery& delivery = made_.list[i];
      for (const Sender& sender : delivery.senders) {
        if (sender.rank == rank) sent_[rank].emplace_back(static_cast<int>(i), sender);
      }
      if (delivery.dst == rank) received_[rank].push_back(static_cast<int>(i));
    }
    Hazards hazards(schedule_);
    delivery_at_.resize(schedule_.world_size);
    return program(rank, hazards);
  }

  /// Where these instructions receive and send on, do the two apart from now on. False if none of
  /// them does.
  bool part(std::span<const Program> programs, std::span<const Issue> stuck) {
    bool found = false;
    for (const Issue& issue : stuck) {
      const auto& lane = programs[issue.rank].lanes[issue.lane].instructions;
      for (std::size_t i = 0; i < lane.size(); ++i) {
        const int delivery = delivery_at_[issue.rank][issue.lane][i];
        if (delivery < 0 || lane[i].sends.empty()) continue;
        unfusable_[delivery] = true;
        found = true;
      }
    }
    return found;
  }

 private:
  [[nodiscard]] int channel(const Delivery& delivery) const {
    return delivery.action == Action::copy ? copy_channel_ : 0;
  }

  /// Decides for every message whether the instruction that brought its chunks sends it.
  ///
  /// A message may leave earlier than its step that way, but not before one that comes earlier in
  /// the order of its port, by which the other end expects it. A port that sends other messages
  /// behind such a one forwards none: its lane would receive all that an earlier step brings before
  /// it sent the first of them.
  void forward() {
    std::unordered_set<std::uint64_t> mixed;  // ports
    decide_forwards([](std::uint64_t) { return true; },
                    [&, forwarded = std::unordered_set<std::uint64_t>()](std::uint64_t port,
                                                                         bool forwards) mutable {
                      if (forwards) forwarded.insert(port);
                      if (!forwards && forwarded.contains(port)) mixed.insert(port);
                    });
    if (mixed.empty()) return;
    decide_forwards([&](std::uint64_t port) { return !mixed.contains(port); },
                    [](std::uint64_t, bool) {});
  }

  /// `allowed` says of a port whether it may; `told` is told, in the order of its messages, whether
  /// it does.
  template <class Allowed, class Told>
  void decide_forwards(const Allowed& allowed, Told told) {
    forwards_.assign(made_.list.size(), {});
    plain_.clear();
    std::unordered_map<std::uint64_t, Order> last_sent;  // by source, destination, channel
    for (std::size_t i = 0; i < made_.list.size(); ++i) {
      const Delivery& delivery = made_.list[i];
      for (const Sender& sender : delivery.senders) {
        const std::uint64_t port =
            (static_cast<std::uint64_t>(sender.rank) * schedule_.world_size + delivery.dst) * 2 +
            channel(delivery);
        Order& last = last_sent.try_emplace(port, Order{-1, -1}).first->second;
        const bool forwards = allowed(port) && sender.producer >= 0 &&
                              may_forward(made_.list[sender.producer], delivery) &&
                              !unfusable_[sender.producer] &&
                              order_of_arrival(made_.list[sender.producer]) > last;
        if (forwards) {
          forwards_[sender.producer].push_back(static_cast<int>(i));
          last = order_of_arrival(made_.list[sender.producer]);
        } else {
          plain_.push_back({static_cast<int>(i), sender});
          last = order_of_send(delivery);
        }
        told(port, forwards);
      }
    }
  }

  static bool may_forward(const Delivery& producer, const Delivery& message) {
    return producer.action == message.action && producer.next_send_step == message.step;
  }

  /// False if all that becomes of the value is that its own instruction sends it on.
  [[nodiscard]] bool stored(int delivery) const {
    const auto forwards = static_cast<int>(forwards_[delivery].size());
    return forwards == 0 || made_.list[delivery].readers > forwards;
  }

  /// Per rank, the deliveries it receives and the messages it sends apart from receiving.
  void collect() {
    received_.assign(schedule_.world_size, {});
    sent_.assign(schedule_.world_size, {});
    for (std::size_t i = 0; i < made_.list.size(); ++i) {
      received_[made_.list[i].dst].push_back(static_cast<int>(i));
    }
    for (const auto& message : plain_) sent_[message.second.rank].push_back(message);
  }

  Program program(Rank rank, Hazards& hazards) {
    Program program{.name = schedule_.name,
                    .collective = schedule_.collective,
                    .world_size = schedule_.world_size,
                    .rank = rank,
                    .num_chunks = schedule_.num_chunks,
                    .scratch_chunks = places_.scratch_chunks(rank),
                    .num_channels = num_channels_,
                    .incoming = {},
                    .outgoing = {},
                    .lanes = {}};
    incoming_.clear();
    outgoing_.clear();
    std::vector<Placed> items;
    add_local_copies(rank, items);
    for (const auto& [delivery, sender] : sent_[rank]) {
      items.push_back(send(delivery, sender));
    }
    for (const int delivery : received_[rank]) items.push_back(arrival(delivery, program));
    std::stable_sort(items.begin(), items.end(), [](const Placed& a, const Placed& b) {
      return std::tie(a.order, a.peer) < std::tie(b.order, b.peer);
    });
    for (Placed& item : items) {  // now that the order is known
      if (item.peer < 0) continue;
      const Delivery& delivery = made_.list[item.delivery];
      item.instruction.sends = {outgoing(program, delivery)};
      item.delivery = -1;
    }
    cut(program, items, hazards);
    return program;
  }

  /// What the rank already has where it is wanted, or is sent on from its output.
  void add_local_copies(Rank rank, std::vector<Placed>& items) {
    std::vector<ChunkId> chunks = own_chunks(schedule_, made_.list, received_[rank], rank);
    const auto early = std::equal_range(
        made_.early_copies.begin(), made_.early_copies.end(), std::pair<Rank, ChunkId>(rank, 0),
        [](const auto& a, const auto& b) { return a.first < b.first; });
    for (auto it = early.first; it != early.second; ++it) chunks.push_back(it->second);
    std::sort(chunks.begin(), chunks.end());
    chunks.erase(std::unique(chunks.begin(), chunks.end()), chunks.end());
    for (const ChunkId chunk : chunks) {
      const LocalRange in = places_.range(Buffer::input, chunk, rank);
      const LocalRange out = places_.range(Buffer::output, chunk, rank);
      if (!items.empty()) {
        Instruction& last = items.back().instruction;
        if (last.chunk + last.count == chunk &&
            last.sources.front().local.index + last.count == in.index &&
            last.destination->index + last.count == out.index) {
          ++last.count;
          continue;
        }
      }
      items.push_back({.order = {-1, chunk},
                       .instruction = {.chunk = chunk,
                                       .count = 1,
                                       .sources = {{.incoming = -1, .local = in}},
                                       .destination = out,
                                       .sends = {},
                                       .after = {}}});
    }
  }

  [[nodiscard]] Placed send(int index, const Sender& sender) const {
    const Delivery& delivery = made_.list[index];
    const LocalRange from = places_.range(sender.buffer, delivery.chunk, sender.rank);
    return {.order = order_of_send(delivery),
            .peer = delivery.dst,
            .delivery = index,
            .instruction = {.chunk = delivery.chunk,
                            .count = delivery.count,
                            .sources = {{.incoming = -1, .local = from}},
                            .destination = {},
                            .sends = {},
                            .after = {}}};
  }

  Placed arrival(int index, Program& program) {
    const Delivery& delivery = made_.list[index];
    Placed item{.order = order_of_arrival(delivery),
                .delivery = index,
                .instruction = {.chunk = delivery.chunk,
                                .count = delivery.count,
                                .sources = {},
                                .destination = {},
                                .sends = {},
                                .after = {},
                                .completes = delivery.completes}};
    auto& sources = item.instruction.sources;
    bool own = delivery.action == Action::reduce;  // still to be put in its place
    const auto put_own = [&] {
      sources.push_back({-1, places_.range(delivery.own, delivery.chunk, delivery.dst)});
      own = false;
    };
    for (const Sender& sender : delivery.senders) {
      if (own && delivery.dst < sender.rank) put_own();
      sources.push_back(
          {.incoming = incoming(program, sender.rank, channel(delivery)), .local = {}});
    }
    if (own) put_own();
    if (stored(index)) {
      item.instruction.destination =
          places_.range(delivery.destination, delivery.chunk, delivery.dst);
    }
    for (const int message : forwards_[index]) {
      item.instruction.sends.push_back(outgoing(program, made_.list[message]));
    }
    return item;
  }

  static int port(std::map<std::pair<Rank, int>, int>& known, std::vector<Port>& ports, Rank peer,
                  int channel) {
    const auto [it, is_new] = known.try_emplace({peer, channel}, static_cast<int>(ports.size()));
    if (is_new) ports.push_back({peer, channel});
    return it->second;
  }
  int incoming(Program& program, Rank peer, int channel) {
    return port(incoming_, program.incoming, peer, channel);
  }
  int outgoing(Program& program, const Delivery& message) {
    return port(outgoing_, program.outgoing, message.dst, channel(message));
  }

  /// Instructions that share a port share a lane; those without any share one, too.
  static std::vector<int> lanes_of(const Program& program, std::span<const Placed> items) {
    const auto num_incoming = static_cast<int>(program.incoming.size());
    const auto num_ports = num_incoming + static_cast<int>(program.outgoing.size());
    DisjointSets sets(at(num_ports) + 1);  // the last: no port
    const auto key = [&](const Instruction& instruction) {
      int first = -1;
      const auto with = [&](int port) {
        if (first >= 0) sets.join(first, port);
        first = port;
      };
      for (const Operand& source : instruction.sources) {
        if (source.incoming >= 0) with(source.incoming);
      }
      for (const int out : instruction.sends) with(num_incoming + out);
      return first >= 0 ? first : num_ports;
    };
    std::vector<int> keys;
    for (const Placed& item : items) keys.push_back(key(item.instruction));
    std::map<int, int> lane;  // by representative, numbered by first instruction
    for (int& k : keys) {
      k = lane.try_emplace(sets.find(k), static_cast<int>(lane.size())).first->second;
    }
    return keys;
  }

  void cut(Program& program, std::vector<Placed>& items, Hazards& hazards) {
    const std::vector<int> lanes = lanes_of(program, items);
    hazards.begin_rank(program.rank);
    program.lanes.resize(lanes.empty() ? 0 : *std::max_element(lanes.begin(), lanes.end()) + 1);
    auto& delivery_at = delivery_at_[program.rank];
    delivery_at.assign(program.lanes.size(), {});
    Dependencies dependencies(program.lanes.size());
    for (std::size_t i = 0; i < items.size(); ++i) {
      Instruction& instruction = items[i].instruction;
      instruction.step = items[i].step();
      instruction.after =
          dependencies.add(lanes[i], instruction, hazards.add(static_cast<int>(i), instruction));
      program.lanes[lanes[i]].instructions.push_back(std::move(instruction));
      delivery_at[lanes[i]].push_back(items[i].delivery);
    }
  }

  const Schedule& schedule_;
  Deliveries made_;
  int copy_channel_ = 0;
  int num_channels_ = 1;
  std::vector<char> unfusable_;             // by delivery
  std::vector<std::vector<int>> forwards_;  // by delivery: the messages it sends on
  std::vector<std::pair<int, Sender>> plain_;
  Placement places_;
  std::vector<std::vector<int>> received_;
  std::vector<std::vector<std::pair<int, Sender>>> sent_;
  std::vector<std::vector<std::vector<int>>> delivery_at_;  // [rank][lane][instruction]
  std::map<std::pair<Rank, int>, int> incoming_;            // of the rank being cut
  std::map<std::pair<Rank, int>, int> outgoing_;
};

std::vector<Issue> stuck(std::span<const Program> programs) {
  AbstractRun run(programs, kFewestSlots, 1);
  run.run([](const Issue&) {});
  return run.stuck();
}

/// Chunks that a message should have at most, where those of some ports have far more than those of
/// others.
///
/// A slot holds the longest message, and so decides how many bytes of each chunk a tile has. Beside
/// one of hundreds of chunks a message of one chunk would be of a few KB, however large the data
/// is, and each takes its round trip. No port gets many more messages by this than the busiest has.
int balanced_length(const Schedule& schedule, const std::vector<Delivery>& made) {
  constexpr int kFarMore = 4;
  struct OfPort {
    int messages = 0;
    int chunks = 0;
  };
  std::map<std::tuple<Rank, Rank, Action>, OfPort> ports;
  int longest = 1;
  for (const Delivery& delivery : made) {
    longest = std::max(longest, delivery.count);
    for (const Sender& sender : delivery.senders) {
      OfPort& port = ports[{sender.rank, delivery.dst, delivery.action}];
      ++port.messages;
      port.chunks += delivery.count;
    }
  }
  int most_messages = 1, least_chunks = longest;
  for (const auto& [ends, port] : ports) {
    most_messages = std::max(most_messages, port.messages);
    least_chunks = std::min(least_chunks, (port.chunks + port.messages - 1) / port.messages);
  }
  const int of_busiest = (longest + most_messages - 1) / most_messages;
  const int enough = kFarMore * std::max(least_chunks, of_busiest);
  return enough < longest ? enough : schedule.num_chunks;
}

}  // namespace

LoweredAlone lower_alone(const Schedule& schedule, Rank rank) {
  OwnDeliveries own = own_deliveries(schedule, rank);
  return {.program = Lowering(schedule, std::move(own.deliveries)).program_alone(rank),
          .longest_message = own.longest};
}

std::vector<Program> lower(const Schedule& schedule) {
  if (!schedule.symmetry.empty()) return lower(expanded(schedule));
  // Forwarding ties an incoming port to an outgoing one and can close a circle of ranks that all
  // wait for a slot. Then it is given up where the circle is.
  Deliveries whole = deliveries(schedule, schedule.num_chunks);
  const int most = balanced_length(schedule, whole.list);
  if (most < schedule.num_chunks) whole = deliveries(schedule, most);
  for (const bool coalesced : {true, false}) {
    Lowering lowering(schedule, coalesced ? std::exchange(whole, {}) : deliveries(schedule, 1));
    for (bool again = true; again;) {
      std::vector<Program> programs = lowering.programs();
      const std::vector<Issue> waiting = stuck(programs);
      if (waiting.empty()) return programs;
      again = lowering.part(programs, waiting);
    }
  }
  // One chunk per message, nothing forwarded: the instruction that is first by (step, chunk, sent
  // before received) can always go on, whatever the slots.
  CHORUS_CHECK(false, "the programs of a correct schedule wait for each other");
  return {};
}

}  // namespace chorus
