#include "model/schedule/contract.hpp"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/check.hpp"
#include "base/counted.hpp"
#include "base/text/suggest.hpp"
#include "chorus/error.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus {
namespace {

/// How the blocks of a collective relate to ranks.
enum class Layout { whole, per_rank, per_pair };

/// Who holds or wants a block: every rank, the root, or the rank(s) the block belongs to.
enum class Who { all, root, owner };

struct Contract {
  std::string_view name;
  Layout layout;
  bool rooted;
  bool combining;
  Who before;
  Who after;
};

// In the order of CollectiveKind.
constexpr std::array<Contract, 9> kContracts{{
    {"all_reduce", Layout::whole, false, true, Who::all, Who::all},
    {"all_gather", Layout::per_rank, false, false, Who::owner, Who::all},
    {"reduce_scatter", Layout::per_rank, false, true, Who::all, Who::owner},
    {"all_to_all", Layout::per_pair, false, false, Who::owner, Who::owner},
    {"broadcast", Layout::whole, true, false, Who::root, Who::all},
    {"reduce", Layout::whole, true, true, Who::all, Who::root},
    {"gather", Layout::per_rank, true, false, Who::owner, Who::root},
    {"scatter", Layout::per_rank, true, false, Who::root, Who::owner},
    {"barrier", Layout::whole, false, true, Who::all, Who::all},
}};

// Keeps n² blocks within int, and a file that asks for more chunks than anybody needs from
// exhausting memory. 2²⁶ blocks are an all_to_all of 8192 ranks.
constexpr int kMaxWorldSize = 32'767;
constexpr int kMaxChunks = 1 << 26;

bool is_known(CollectiveKind kind) { return static_cast<std::size_t>(kind) < kContracts.size(); }

const Contract& contract_of(CollectiveKind kind) {
  CHORUS_CHECK(is_known(kind), "unknown collective kind");
  return kContracts[static_cast<std::size_t>(kind)];
}

int chunks_per_block(const Schedule& schedule) {
  return schedule.num_chunks / num_blocks(schedule.collective.kind, schedule.world_size);
}

/// The one rank that holds (wants) `chunk`, or -1 for all.
Rank holder(const Schedule& schedule, ChunkId chunk, Who who, bool before) {
  if (who == Who::all) return -1;
  if (who == Who::root) return schedule.collective.root;
  const int block = chunk / chunks_per_block(schedule);
  if (contract_of(schedule.collective.kind).layout == Layout::per_rank) return block;
  return before ? block / schedule.world_size : block % schedule.world_size;
}

int blocks_of(const Contract& contract, Who who, const Collective& collective, int world_size,
              Rank rank) {
  if (who == Who::root && rank != collective.root) return 0;
  // A rank's own share of n blocks is 1 of them, of n·n blocks n.
  if (contract.layout == Layout::per_pair) return world_size;
  return contract.layout == Layout::per_rank && who != Who::owner ? world_size : 1;
}

}  // namespace

std::string_view name_of(CollectiveKind kind) {
  return is_known(kind) ? contract_of(kind).name : std::string_view("unknown");
}

CollectiveKind parse_collective_kind(std::string_view name) {
  std::vector<std::string_view> known;
  for (std::size_t i = 0; i < kContracts.size(); ++i) {
    if (kContracts[i].name == name) return static_cast<CollectiveKind>(i);
    known.push_back(kContracts[i].name);
  }
  throw InputError(fmt::format("collective '{}' is unknown: {}use one of {}", name,
                               hint(name, known), fmt::join(known, ", ")));
}

bool is_rooted(CollectiveKind kind) { return contract_of(kind).rooted; }

bool is_combining(CollectiveKind kind) { return contract_of(kind).combining; }

int num_blocks(CollectiveKind kind, int world_size) {
  switch (contract_of(kind).layout) {
    case Layout::whole:
      return 1;
    case Layout::per_rank:
      return world_size;
    case Layout::per_pair:
      return world_size * world_size;
  }
  return 1;
}

int input_blocks(Collective collective, int world_size, Rank rank) {
  const Contract& contract = contract_of(collective.kind);
  return blocks_of(contract, contract.before, collective, world_size, rank);
}

int output_blocks(Collective collective, int world_size, Rank rank) {
  const Contract& contract = contract_of(collective.kind);
  return blocks_of(contract, contract.after, collective, world_size, rank);
}

Rank origin(const Schedule& schedule, ChunkId chunk) {
  return holder(schedule, chunk, contract_of(schedule.collective.kind).before, true);
}

Rank destination_of(const Schedule& schedule, ChunkId chunk) {
  return holder(schedule, chunk, contract_of(schedule.collective.kind).after, false);
}

bool starts_at(const Schedule& schedule, ChunkId chunk, Rank rank) {
  const Rank from = origin(schedule, chunk);
  return from == -1 || from == rank;
}

bool wanted_at(const Schedule& schedule, ChunkId chunk, Rank rank) {
  const Rank to = destination_of(schedule, chunk);
  return to == -1 || to == rank;
}

int input_index(const Schedule& schedule, ChunkId chunk, Rank rank) {
  if (!starts_at(schedule, chunk, rank)) return -1;
  const Contract& contract = contract_of(schedule.collective.kind);
  if (contract.before != Who::owner) return chunk;
  const int k = chunks_per_block(schedule);
  if (contract.layout == Layout::per_rank) return chunk % k;
  return chunk - rank * schedule.world_size * k;  // all_to_all: its n blocks, by destination
}

int output_index(const Schedule& schedule, ChunkId chunk, Rank rank) {
  if (!wanted_at(schedule, chunk, rank)) return -1;
  const Contract& contract = contract_of(schedule.collective.kind);
  if (contract.after != Who::owner) return chunk;
  const int k = chunks_per_block(schedule);
  if (contract.layout == Layout::per_rank) return chunk % k;
  return chunk / k / schedule.world_size * k + chunk % k;  // all_to_all: n blocks, by source
}

ChunkId input_chunk(const Schedule& schedule, int index, Rank rank) {
  const Contract& contract = contract_of(schedule.collective.kind);
  if (contract.before != Who::owner) return index;
  const int k = chunks_per_block(schedule);
  return index + rank * k * (contract.layout == Layout::per_rank ? 1 : schedule.world_size);
}

ChunkId output_chunk(const Schedule& schedule, int index, Rank rank) {
  const Contract& contract = contract_of(schedule.collective.kind);
  if (contract.after != Who::owner) return index;
  const int k = chunks_per_block(schedule);
  if (contract.layout == Layout::per_rank) return index + rank * k;
  return (index / k * schedule.world_size + rank) * k + index % k;
}

bool aliased_in_place(const Schedule& schedule, ChunkId chunk, Rank rank) {
  return schedule.collective.kind != CollectiveKind::all_to_all &&
         starts_at(schedule, chunk, rank) && wanted_at(schedule, chunk, rank);
}

namespace {

std::optional<std::string> malformed_transfer(const Schedule& schedule, const Transfer& transfer) {
  const int n = schedule.world_size;
  const auto bad_rank = [n](Rank rank) { return rank < 0 || rank >= n; };
  if (bad_rank(transfer.src) || bad_rank(transfer.dst)) {
    return fmt::format("rank {} is not in [0, {})",
                       bad_rank(transfer.src) ? transfer.src : transfer.dst, n);
  }
  if (transfer.chunk < 0 || transfer.chunk >= schedule.num_chunks) {
    return fmt::format("chunk {} is not in [0, {})", transfer.chunk, schedule.num_chunks);
  }
  if (transfer.src == transfer.dst) {
    return fmt::format("rank {} sends chunk {} to itself", transfer.src, transfer.chunk);
  }
  if (transfer.action != Action::copy && transfer.action != Action::reduce) {
    return fmt::format("action {} of chunk {} is neither copy nor reduce",
                       static_cast<int>(transfer.action), transfer.chunk);
  }
  if (transfer.action == Action::reduce && !is_combining(schedule.collective.kind)) {
    return fmt::format("rank {} reduces chunk {} into rank {}, but {} only copies", transfer.src,
                       transfer.chunk, transfer.dst, name_of(schedule.collective.kind));
  }
  return std::nullopt;
}

std::optional<std::string> malformed_sizes(const Schedule& schedule) {
  const auto [kind, root] = schedule.collective;
  const int n = schedule.world_size;
  if (!is_known(kind)) {
    return fmt::format("collective kind {} is unknown", static_cast<int>(kind));
  }
  if (n < 1 || n > kMaxWorldSize) {
    return fmt::format("world size {} is not in [1, {}]", n, kMaxWorldSize);
  }
  if (root < 0 || root >= n) return fmt::format("root {} is not in [0, {})", root, n);
  if (root != 0 && !is_rooted(kind)) {
    return fmt::format("root {} is given, but {} has no root: leave it 0", root, name_of(kind));
  }
  if (schedule.num_chunks < 1 || schedule.num_chunks > kMaxChunks) {
    return fmt::format("a schedule of {}: must be in [1, {}]",
                       counted(schedule.num_chunks, "chunk"), kMaxChunks);
  }
  const int blocks = num_blocks(kind, n);
  if (schedule.num_chunks % blocks != 0) {
    return fmt::format("{} cannot be shared equally by the {} of {} on {}",
                       counted(schedule.num_chunks, "chunk"), counted(blocks, "block"),
                       name_of(kind), counted(n, "rank"));
  }
  if (kind == CollectiveKind::barrier && schedule.num_chunks != 1) {
    return fmt::format("{} chunks, but barrier has one token", schedule.num_chunks);
  }
  return malformed_symmetry(schedule);
}

}  // namespace

std::optional<std::string> malformed(const Schedule& schedule) {
  if (auto fault = malformed_sizes(schedule)) return fault;
  const ChunkId named = num_named_chunks(schedule);
  for (std::size_t step = 0; step < schedule.steps.size(); ++step) {
    for (const Transfer& transfer : schedule.steps[step]) {
      if (auto fault = malformed_transfer(schedule, transfer)) {
        return fmt::format("step {}: {}", step, *fault);
      }
      if (transfer.chunk >= named) {
        return fmt::format("step {}: chunk {} is not in [0, {}), the chunks of cell 0", step,
                           transfer.chunk, named);
      }
    }
  }
  return std::nullopt;
}

Schedule rotated(const Schedule& schedule, int shift) {
  if (!schedule.symmetry.empty()) return rotated(expanded(schedule), shift);
  const int n = schedule.world_size;
  const Layout layout = contract_of(schedule.collective.kind).layout;
  const int k = chunks_per_block(schedule);
  const int by = ((shift % n) + n) % n;
  const auto rank = [n, by](Rank r) { return (r + by) % n; };
  const auto chunk = [&](ChunkId c) {
    if (layout == Layout::whole) return c;
    const int block = c / k;
    const int renamed =
        layout == Layout::per_rank ? rank(block) : rank(block / n) * n + rank(block % n);
    return renamed * k + c % k;
  };

  Schedule result = schedule;
  if (is_rooted(schedule.collective.kind)) {
    result.collective.root = rank(schedule.collective.root);
  }
  for (Step& step : result.steps) {
    for (Transfer& transfer : step) {
      transfer = {rank(transfer.src), rank(transfer.dst), chunk(transfer.chunk), transfer.action};
    }
  }
  return result;
}

}  // namespace chorus
