#include "device/image.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "chorus/error.hpp"
#include "device/cut.hpp"
#include "device/fold.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::device {
namespace {

constexpr std::uint32_t kNone = 0xffffffff;

/// Writes words; refuses what does not fit the meaning of a field.
class Writer {
 public:
  explicit Writer(std::string name) : name_(std::move(name)) {}

  template <class T>
  std::uint32_t put(const T& entry) {
    static_assert(sizeof(T) % 4 == 0);
    const auto at = size();
    const auto* words = reinterpret_cast<const std::uint32_t*>(&entry);
    words_.insert(words_.end(), words, words + sizeof(T) / 4);
    return at;
  }
  template <class T>
  T& at(std::uint32_t offset) {
    return *reinterpret_cast<T*>(words_.data() + offset);
  }
  /// `value` in [0, limit).
  std::uint32_t index(int value, std::size_t limit, const char* what) const {
    if (value < 0 || static_cast<std::size_t>(value) >= limit) {
      throw InputError(
          fmt::format("program '{}': {} is {}, but must be in [0, {})", name_, what, value, limit));
    }
    return static_cast<std::uint32_t>(value);
  }
  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(words_.size()); }
  std::vector<std::uint32_t> take() { return std::move(words_); }

 private:
  std::string name_;
  std::vector<std::uint32_t> words_;
};

/// Ports renumbered so that those of a lane follow each other.
struct PortNumbers {
  std::vector<std::uint32_t> number;  ///< [old], kNone while unused
  std::vector<ImagePort> ports;       ///< [new]
};

void use(PortNumbers& numbers, int port, std::span<const Port> all, const Writer& writer,
         const Program& program) {
  const std::uint32_t old = writer.index(port, all.size(), "a port");
  if (numbers.number[old] != kNone) return;
  numbers.number[old] = static_cast<std::uint32_t>(numbers.ports.size());
  const Port& entry = all[old];
  numbers.ports.push_back(
      {writer.index(entry.peer, static_cast<std::size_t>(program.world_size), "a peer"),
       writer.index(entry.channel, static_cast<std::size_t>(program.num_channels), "a channel")});
}

std::uint32_t within(const PortNumbers& numbers, int port, std::uint32_t first, std::uint32_t count,
                     const Writer& writer) {
  const std::uint32_t number = numbers.number[static_cast<std::size_t>(port)];
  writer.index(static_cast<int>(number) - static_cast<int>(first), count,
               "a port that belongs to another lane");
  return number - first;
}

class Flattening {
 public:
  explicit Flattening(const Program& program) : program_(program), out_(program.name) {
    in_.number.assign(program.incoming.size(), kNone);
    sends_.number.assign(program.outgoing.size(), kNone);
    const int blocks = num_blocks(program.collective.kind, program.world_size);
    chunks_per_block_ = program.num_chunks / std::max(1, blocks);
    places_[0] = input_blocks(program.collective, program.world_size, program.rank);
    places_[1] = output_blocks(program.collective, program.world_size, program.rank);
    for (std::size_t& places : places_) places *= static_cast<std::size_t>(chunks_per_block_);
    places_[2] = static_cast<std::size_t>(program.scratch_chunks);
    // Messages between two ranks are programs too: they have both ends.
    if (places_[0] == 0) places_[0] = static_cast<std::size_t>(program.num_chunks);
    if (places_[1] == 0) places_[1] = static_cast<std::size_t>(program.num_chunks);
  }

  Image run() {
    out_.put(ImageHead{});
    const std::uint32_t lanes = out_.size();
    for (const Lane& lane : program_.lanes) out_.put(number_ports(lane));
    mark_awaited(lanes);
    for (std::size_t i = 0; i < program_.lanes.size(); ++i) {
      const auto at = lanes + static_cast<std::uint32_t>(i * sizeof(ImageLane) / 4);
      out_.at<ImageLane>(at).instructions = out_.size();
      const ImageLane lane = out_.at<ImageLane>(at);
      for (const Instruction& instruction : program_.lanes[i].instructions) put(instruction, lane);
    }
    ImageHead head{};
    head.num_chunks = static_cast<std::uint32_t>(program_.num_chunks);
    head.chunks_per_block = static_cast<std::uint32_t>(chunks_per_block_);
    head.num_channels = static_cast<std::uint32_t>(program_.num_channels);
    head.num_lanes = static_cast<std::uint32_t>(program_.lanes.size());
    head.lanes = lanes;
    head.in_ports = out_.size();
    for (const ImagePort& port : in_.ports) out_.put(port);
    head.out_ports = out_.size();
    for (const ImagePort& port : sends_.ports) out_.put(port);
    head.words = out_.size();
    out_.at<ImageHead>(0) = head;
    return {out_.take()};
  }

 private:
  ImageLane number_ports(const Lane& lane) {
    ImageLane entry{};
    entry.num_instructions = static_cast<std::uint32_t>(lane.instructions.size());
    entry.first_in = static_cast<std::uint32_t>(in_.ports.size());
    entry.first_out = static_cast<std::uint32_t>(sends_.ports.size());
    for (const Instruction& instruction : lane.instructions) {
      for (const Operand& source : instruction.sources) {
        if (source.incoming >= 0) use(in_, source.incoming, program_.incoming, out_, program_);
      }
      for (const int send : instruction.sends) {
        use(sends_, send, program_.outgoing, out_, program_);
      }
    }
    entry.num_in = static_cast<std::uint32_t>(in_.ports.size()) - entry.first_in;
    entry.num_out = static_cast<std::uint32_t>(sends_.ports.size()) - entry.first_out;
    out_.index(static_cast<int>(entry.num_in + entry.num_out), kMostPorts + 1,
               "the number of a lane's ports");
    return entry;
  }

  void mark_awaited(std::uint32_t lanes) {
    for (const Lane& lane : program_.lanes) {
      for (const Instruction& instruction : lane.instructions) {
        for (const Dependency& dependency : instruction.after) {
          const std::uint32_t other =
              out_.index(dependency.lane, program_.lanes.size(), "a lane that is waited for");
          constexpr std::uint32_t kWords = sizeof(ImageLane) / 4;
          out_.at<ImageLane>(lanes + other * kWords).is_awaited = 1;
        }
      }
    }
  }

  std::uint32_t place(const LocalRange& range, int count) const {
    const auto buffer = static_cast<std::size_t>(range.buffer);
    out_.index(static_cast<int>(buffer), places_.size(), "a buffer");
    out_.index(range.index, places_[buffer], "a place in a buffer");
    out_.index(range.index + count - 1, places_[buffer], "the end of a place in a buffer");
    return static_cast<std::uint32_t>(range.index);
  }

  void put(const Instruction& instruction, const ImageLane& lane) {
    ImageInstruction entry{};
    out_.index(instruction.count - 1, static_cast<std::size_t>(program_.num_chunks),
               "the number of chunks");
    entry.chunk =
        out_.index(instruction.chunk, static_cast<std::size_t>(program_.num_chunks), "a chunk");
    out_.index(instruction.chunk + instruction.count - 1,
               static_cast<std::size_t>(program_.num_chunks), "the last chunk");
    entry.count = static_cast<std::uint32_t>(instruction.count);
    out_.index(static_cast<int>(instruction.sources.size()) - 1, kMostOperands, "the last source");
    // One target is the destination.
    out_.index(static_cast<int>(instruction.sends.size()), kMostOperands, "the number of sends");
    entry.num_sources = static_cast<std::uint32_t>(instruction.sources.size());
    entry.num_after = static_cast<std::uint32_t>(instruction.after.size());
    entry.num_sends = static_cast<std::uint32_t>(instruction.sends.size());
    entry.completes = instruction.completes ? 1 : 0;
    if (instruction.destination) {
      entry.has_destination = 1;
      entry.buffer = static_cast<std::uint32_t>(instruction.destination->buffer);
      entry.index = place(*instruction.destination, instruction.count);
    }
    const std::uint32_t at = out_.put(entry);
    for (const Operand& source : instruction.sources) {
      if (source.incoming >= 0) {
        out_.put(
            ImageOperand{within(in_, source.incoming, lane.first_in, lane.num_in, out_), 0, 0});
      } else {
        out_.put(ImageOperand{kLocal, static_cast<std::uint32_t>(source.local.buffer),
                              place(source.local, instruction.count)});
      }
    }
    for (const Dependency& dependency : instruction.after) {
      const auto& other = program_.lanes[static_cast<std::size_t>(dependency.lane)];
      out_.put(ImageDependency{static_cast<std::uint32_t>(dependency.lane),
                               out_.index(dependency.instruction, other.instructions.size(),
                                          "an instruction that is waited for")});
    }
    for (const int send : instruction.sends) {
      out_.put(within(sends_, send, lane.first_out, lane.num_out, out_));
    }
    out_.at<ImageInstruction>(at).words = out_.size() - at;
  }

  const Program& program_;
  Writer out_;
  PortNumbers in_;
  PortNumbers sends_;
  int chunks_per_block_ = 1;
  std::array<std::size_t, 3> places_{};
};

}  // namespace

Image flatten(const Program& program) { return Flattening(program).run(); }

Image flatten(const DirectProgram& program) {
  Writer out(program.name);
  const int blocks = num_blocks(program.collective.kind, program.world_size);
  const int per_block = program.num_chunks / std::max(1, blocks);
  ImageHead head{};
  out.put(head);
  head.num_chunks = static_cast<std::uint32_t>(program.num_chunks);
  head.chunks_per_block = static_cast<std::uint32_t>(per_block);
  head.num_moves = static_cast<std::uint32_t>(program.moves.size());
  head.moves = out.size();
  const auto put_places = [&](const std::vector<Place>& places, int count, bool input) {
    for (const Place& place : places) {
      const std::uint32_t rank =
          out.index(place.rank, static_cast<std::size_t>(program.world_size), "a rank");
      const int limit =
          per_block * (input ? input_blocks(program.collective, program.world_size, place.rank)
                             : output_blocks(program.collective, program.world_size, place.rank));
      out.index(place.index + count - 1, static_cast<std::size_t>(limit), "the end of a place");
      out.put(ImagePlace{rank, out.index(place.index, static_cast<std::size_t>(limit), "a place")});
    }
  };
  for (const Move& move : program.moves) {
    out.index(static_cast<int>(move.sources.size()) - 1, kMostOperands, "the last source");
    out.index(static_cast<int>(move.destinations.size()), kMostOperands + 1,
              "the number of destinations");
    out.index(move.chunk % per_block + move.count - 1, static_cast<std::size_t>(per_block),
              "the last chunk of a move within its block");
    const std::uint32_t at = out.put(ImageMove{
        0, out.index(move.chunk, static_cast<std::size_t>(program.num_chunks), "a chunk"),
        static_cast<std::uint32_t>(move.count), static_cast<std::uint32_t>(move.sources.size()),
        static_cast<std::uint32_t>(move.destinations.size())});
    put_places(move.sources, move.count, true);
    put_places(move.destinations, move.count, false);
    out.at<ImageMove>(at).words = out.size() - at;
  }
  head.words = out.size();
  out.at<ImageHead>(0) = head;
  return {out.take()};
}

bool has_room_for_operands(std::span<const Program> programs) {
  const auto fits = [](const Instruction& one) {
    return one.sources.size() <= kMostOperands && one.sends.size() < kMostOperands;
  };
  return std::ranges::all_of(programs, [&](const Program& program) {
    return std::ranges::all_of(program.lanes, [&](const Lane& lane) {
      return std::ranges::all_of(lane.instructions, fits);
    });
  });
}

bool has_room_for_operands(std::span<const DirectProgram> programs) {
  const auto fits = [](const Move& move) {
    return move.sources.size() <= kMostOperands && move.destinations.size() <= kMostOperands;
  };
  return std::ranges::all_of(programs, [&](const DirectProgram& program) {
    return std::ranges::all_of(program.moves, fits);
  });
}

namespace {

/// Ports that a lane uses.
std::size_t num_ports(const Lane& lane) {
  std::set<int> in;
  std::set<int> out;
  for (const Instruction& instruction : lane.instructions) {
    for (const Operand& source : instruction.sources) {
      if (source.incoming >= 0) in.insert(source.incoming);
    }
    out.insert(instruction.sends.begin(), instruction.sends.end());
  }
  return in.size() + out.size();
}

constexpr std::uint64_t divided_up(std::uint64_t value, std::uint64_t by) {
  return (value + by - 1) / by;
}

/// Elements of one chunk in each tile, where `chunk` are divided among `instances` and a slot holds
/// `most`. Instances get tiles of one size: whole rounds of the wide path where that leaves no
/// instance with much more than its share.
std::uint64_t tile_chunk(std::uint64_t chunk, std::uint64_t most, std::uint64_t instances,
                         std::uint64_t element) {
  const std::uint64_t line = std::max<std::uint64_t>(1, kLineBytes / element);
  const std::uint64_t round = kRoundBytes / element;
  if (most >= round) {
    most = most / round * round;
  } else if (most >= line) {
    most = most / line * line;
  }
  // Two tiles each, if they are not too short: one is sent while the other is folded.
  const std::uint64_t each = std::max<std::uint64_t>(divided_up(chunk, most * instances),
                                                     chunk >= 2 * round * instances ? 2 : 1);
  const std::uint64_t share = round_up(divided_up(chunk, each * instances), line);
  const std::uint64_t even = std::clamp(share, each == 1 ? std::min(round, most) : 1, most);
  // What the instance with the most has to do.
  const auto load = [&](std::uint64_t length) {
    return divided_up(divided_up(chunk, length), instances) * length;
  };
  for (const std::uint64_t whole : {round_up(even, round), even / round * round}) {
    if (whole > 0 && whole <= most && load(whole) <= load(even) + load(even) / 8) return whole;
  }
  return even;
}

}  // namespace

std::vector<std::uint32_t> lane_ports(const Image& image) {
  const ImageHead& head = image.head();
  const auto* const lanes = reinterpret_cast<const ImageLane*>(image.words.data() + head.lanes);
  std::vector<std::uint32_t> ports;
  for (std::uint32_t i = 0; i < head.num_lanes; ++i) {
    ports.push_back(lanes[i].num_in + lanes[i].num_out);
  }
  return ports;
}

bool have_room(std::span<const Placement> calls, std::uint32_t blocks) {
  std::vector<std::uint32_t> works(blocks), ports(blocks);
  for (const Placement& call : calls) {
    const std::size_t total = call.ports.size() * call.instances;
    for (std::size_t w = 0; w < total; ++w) {
      const std::size_t block = (call.first_work + w) % blocks;
      works[block] += 1;
      ports[block] += call.ports[w / call.instances];  // as collect() numbers them
      if (works[block] > kMostWorks || ports[block] > kMostPorts) return false;
    }
  }
  return true;
}

Figures figures_of(std::span<const Program> programs, Rank rank) {
  Figures figures;
  const Program& mine = programs[static_cast<std::size_t>(rank)];
  figures.chunks_per_block = static_cast<std::uint32_t>(
      mine.num_chunks / std::max(1, num_blocks(mine.collective.kind, mine.world_size)));
  figures.num_channels = static_cast<std::uint32_t>(std::max(1, mine.num_channels));
  figures.scratch_chunks = static_cast<std::uint32_t>(mine.scratch_chunks);
  const auto raise = [](std::uint32_t& most, std::size_t value) {
    most = std::max(most, static_cast<std::uint32_t>(value));
  };
  for (const Program& program : programs) {
    raise(figures.max_message_chunks, static_cast<std::size_t>(max_message_chunks(program)));
    raise(figures.max_lanes, program.lanes.size());
    raise(figures.max_ports, program.incoming.size() + program.outgoing.size());
    for (const Lane& lane : program.lanes) raise(figures.max_lane_ports, num_ports(lane));
  }
  return figures;
}

Shape shape_for(std::size_t ranks, std::size_t slot_bytes, std::uint32_t blocks) {
  constexpr std::uint64_t kWordsSlot = 16 * 1024;
  // What a rank keeps for all others together.
  constexpr std::uint32_t kAllConnections = 1024;
  constexpr std::uint64_t kAllSlotBytes = 128 << 20;
  Shape shape{};
  shape.ranks = static_cast<std::uint32_t>(ranks);
  shape.slots = kMostSlots;
  const std::uint32_t few = std::clamp<std::uint32_t>(64 / shape.ranks, 2, 16);
  const std::uint32_t room = std::clamp<std::uint32_t>(kAllConnections / shape.ranks, 2, 64);
  // Two for each block: a program that reduces and copies uses two at a time.
  shape.connections = blocks == 0 ? few : std::clamp<std::uint32_t>(2 * blocks, 2, room);
  shape.word_connections = std::min(few, shape.connections);
  const std::uint64_t each =
      kAllSlotBytes / (std::uint64_t{shape.ranks} * shape.connections * shape.slots);
  const std::uint64_t rounds = std::max<std::uint64_t>(each / kRoundBytes, 1);
  const std::uint64_t slot = std::min(round_up(slot_bytes, kLineBytes), rounds * kRoundBytes);
  shape.slot_bytes[0] = static_cast<std::uint32_t>(std::min(kWordsSlot, slot));
  shape.slot_bytes[1] = static_cast<std::uint32_t>(slot);
  return shape;
}

std::uint32_t most_instances(const Figures& figures, const Shape& shape, const Limits& limits,
                             Protocol protocol) {
  const std::uint32_t connections =
      protocol == Protocol::words ? shape.word_connections : shape.connections;
  std::uint32_t most = std::min(limits.blocks, connections / figures.num_channels);
  if (limits.instances > 0) most = std::min(most, limits.instances);
  // A block has at most one instance of each lane, as there are no more instances than blocks: so
  // it has room for the ports of its lanes if it has for those of a program.
  const std::uint32_t lanes_per_block =
      figures.max_ports <= kMostPorts
          ? kMostWorks
          : std::clamp(kMostPorts / std::max(1U, figures.max_lane_ports), 1U, kMostWorks);
  most = std::min(most, limits.blocks * lanes_per_block / figures.max_lanes);
  most = std::min(most, kProgressSlots / figures.max_lanes);
  return std::max(1U, most);
}

std::uint64_t cut(CallArguments& call, const Figures& figures, const Shape& shape,
                  const Limits& limits, bool always_bulk) {
  const auto element = static_cast<std::uint64_t>(size_of(call.type));
  const std::uint64_t k = figures.chunks_per_block;
  const std::uint64_t m = figures.max_message_chunks;
  const std::uint64_t chunk = divided_up(call.count, k);
  call.protocol =
      always_bulk || chunk * m * element > limits.words_bytes ? Protocol::bulk : Protocol::words;
  const std::uint32_t slot = shape.slot_bytes[static_cast<std::uint32_t>(call.protocol)];
  const std::uint64_t unit = call.protocol == Protocol::words ? 16 : kLineBytes;
  const std::uint64_t most = wire_capacity(call.protocol, slot / m / unit * unit) / element;
  if (most == 0) {
    throw InputError(fmt::format("slots of {} bytes cannot hold a message of {} chunks", slot, m));
  }
  const std::uint32_t instances = most_instances(figures, shape, limits, call.protocol);
  const Cut whole{call.count, call.count, static_cast<std::uint32_t>(k),
                  static_cast<std::uint32_t>(element)};
  const bool divided = call.protocol == Protocol::bulk && instances > 1;
  const std::uint64_t tile =
      whole.longest(call.count) <= most && !divided
          ? call.count
          : std::min(call.count, tile_chunk(chunk, most, divided ? instances : 1, element) * k);
  call.tile_count = std::max<std::uint64_t>(1, tile);
  call.num_tiles = static_cast<std::uint32_t>(
      std::max<std::uint64_t>(1, divided_up(call.count, call.tile_count)));
  call.instances = std::min(instances, call.num_tiles);
  const Cut cutting{call.count, call.tile_count, whole.chunks, whole.element};
  const std::uint64_t place = round_up(cutting.longest(call.tile_count) * element, 16) / element;
  call.scratch_stride = place * call.num_tiles;
  if (call.protocol == Protocol::words && limits.relays) call.protocol = Protocol::mixed;
  return figures.scratch_chunks * call.scratch_stride * element;
}

}  // namespace chorus::device
