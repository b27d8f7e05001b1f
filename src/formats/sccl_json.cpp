// SCCL's algorithms: addresses that travel in steps of rounds.
#include "formats/sccl_json.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>

#include "chorus/error.hpp"
#include "formats/msccl_xml.hpp"
#include "model/json/reader.hpp"
#include "model/schedule/contract.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus::formats {
namespace {

constexpr int kMostScclRanks = 512;
constexpr int kMostAddresses = 1 << 20;
constexpr std::size_t kMostMembers = kMostScclRanks;  // input_map has one per rank

/// A chunk as SCCL counts them: one contribution to one address.
struct Chunk {
  std::vector<Rank> before;
  std::vector<Rank> after;
  int address = 0;
};

std::vector<Rank> ranks_in(const json::Node& list, int world_size) {
  std::set<Rank> result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    result.insert(list.item(i).integer(0, world_size - 1));
  }
  if (result.empty()) list.fail("names no rank");
  return {result.begin(), result.end()};
}

/// What one address is to the collective: who begins with it and who must end with it, -1: all.
struct Address {
  std::vector<Rank> contributors;
  Rank from = -1;
  Rank to = -1;
};

/// From the pre- and postconditions of all addresses to one of our collectives.
class Contract {
 public:
  Contract(const json::Node& collective, int world_size) : n_(world_size) {
    const json::Node chunks = collective.member("chunks");
    for (std::size_t i = 0; i < chunks.size(); ++i) add(chunks.item(i));
    if (addresses_.empty()) chunks.fail("is empty");
    if (static_cast<long long>(addresses_.size()) * n_ > 1 << 22) {
      chunks.fail("names more addresses than can be judged");
    }
    for (auto& [address, what] : addresses_) {
      std::sort(what.contributors.begin(), what.contributors.end());
      const auto last = std::unique(what.contributors.begin(), what.contributors.end());
      if (last != what.contributors.end()) {
        chunks.fail(fmt::format("gives address {} twice from one rank", address));
      }
      combining_ = combining_ || what.contributors.size() > 1;
    }
    for (const auto& [address, what] : addresses_) {
      if (what.contributors.size() == (combining_ ? static_cast<std::size_t>(n_) : 1)) continue;
      chunks.fail(
          fmt::format("gives address {} contributions of {} of {} ranks: no collective of "
                      "Chorus does",
                      address, what.contributors.size(), n_));
    }
    outline_ = {.name = "",
                .collective = collective_of(chunks),
                .world_size = n_,
                .num_chunks = static_cast<int>(addresses_.size()),
                .steps = {}};
    if (const auto fault = malformed(outline_)) chunks.fail(*fault);
    number(chunks);
  }

  [[nodiscard]] const Schedule& outline() const { return outline_; }
  [[nodiscard]] bool combining() const { return combining_; }
  /// Our chunk, or -1 for an address that the collective does not name.
  [[nodiscard]] ChunkId chunk(int address) const {
    const auto found = chunks_.find(address);
    return found == chunks_.end() ? -1 : found->second;
  }

 private:
  void add(const json::Node& node) {
    node.expect_members({"pre", "post", "addr"}, {"msccl_type"});
    const std::vector<Rank> before = ranks_in(node.member("pre"), n_);
    const std::vector<Rank> after = ranks_in(node.member("post"), n_);
    if (before.size() != 1) {
      node.member("pre").fail("names several ranks: Chorus's collectives begin with one");
    }
    const bool everyone = static_cast<int>(after.size()) == n_;
    if (!everyone && after.size() != 1) {
      node.member("post").fail("names neither one rank nor all: no collective of Chorus does");
    }
    const Rank to = everyone ? -1 : after.front();
    const int index = node.member("addr").integer(0, kMostAddresses);
    const auto [entry, is_new] = addresses_.try_emplace(
        index, Address{.contributors = {}, .from = before.front(), .to = to});
    if (!is_new && entry->second.to != to) {
      node.member("post").fail("differs from that of another chunk with the same address");
    }
    entry->second.contributors.push_back(before.front());
  }

  /// The one rank that all addresses share by `pick`, or -1.
  template <class Pick>
  [[nodiscard]] Rank common(Pick pick) const {
    const Rank first = pick(addresses_.begin()->second);
    const bool same = std::all_of(addresses_.begin(), addresses_.end(),
                                  [&](const auto& entry) { return pick(entry.second) == first; });
    return same ? first : -1;
  }

  [[nodiscard]] Collective collective_of(const json::Node& chunks) const {
    const auto for_all = [](const Address& a) { return a.to == -1; };
    const auto wanted_by_all = std::count_if(addresses_.begin(), addresses_.end(),
                                             [&](const auto& e) { return for_all(e.second); });
    const bool all = wanted_by_all == static_cast<std::ptrdiff_t>(addresses_.size());
    if (!all && wanted_by_all != 0) {
      chunks.fail(
          "bring some addresses to all ranks and some to one: no collective of Chorus does");
    }
    const Rank from = common([](const Address& a) { return a.from; });
    const Rank to = common([](const Address& a) { return a.to; });
    if (combining_) {
      if (all) return {CollectiveKind::all_reduce};
      if (to >= 0) return {CollectiveKind::reduce, to};
      return {CollectiveKind::reduce_scatter};
    }
    if (all && from >= 0) return {CollectiveKind::broadcast, from};
    if (all) return {CollectiveKind::all_gather};
    if (to >= 0) return {CollectiveKind::gather, to};
    if (from >= 0) return {CollectiveKind::scatter, from};
    return {CollectiveKind::all_to_all};
  }

  /// Addresses of one block in increasing order are its pieces.
  void number(const json::Node& chunks) {
    const CollectiveKind kind = outline_.collective.kind;
    const int blocks = num_blocks(kind, n_);
    const int k = outline_.num_chunks / blocks;
    std::vector<int> pieces(blocks);
    for (const auto& [address, what] : addresses_) {
      int block = 0;
      if (kind == CollectiveKind::all_to_all) {
        block = what.from * n_ + what.to;
      } else if (blocks == n_) {
        const bool by_source = kind == CollectiveKind::all_gather || kind == CollectiveKind::gather;
        block = by_source ? what.from : what.to;
      }
      if (n_ > 1 && pieces[block] == k) {
        chunks.fail(fmt::format("are not spread evenly: {} has more than {} of the {} addresses",
                                blocks == n_ ? "a rank" : "a pair of ranks", k, addresses_.size()));
      }
      chunks_[address] = block * k + pieces[block]++;
    }
  }

  int n_;
  bool combining_ = false;
  std::map<int, Address> addresses_;
  std::map<int, ChunkId> chunks_;
  Schedule outline_;
};

/// What every rank holds of every chunk, as sets of contributions: SCCL's sends unite them.
class Holdings {
 private:
  template <class Bits>
  auto row(Bits& bits, ChunkId chunk, Rank rank) const {
    return bits.data() + (static_cast<std::size_t>(chunk) * n_ + rank) * words_;
  }

 public:
  explicit Holdings(const Schedule& outline)
      : n_(outline.world_size),
        words_((static_cast<std::size_t>(n_) + 63) / 64),
        bits_(static_cast<std::size_t>(outline.num_chunks) * n_ * words_) {
    for (ChunkId c = 0; c < outline.num_chunks; ++c) {
      for (Rank r = 0; r < n_; ++r) row(bits_, c, r)[r / 64] |= std::uint64_t{1} << (r % 64);
    }
  }

  [[nodiscard]] bool disjoint(ChunkId chunk, Rank a, Rank b) const {
    for (std::size_t w = 0; w < words_; ++w) {
      if ((row(bits_, chunk, a)[w] & row(bits_, chunk, b)[w]) != 0) return false;
    }
    return true;
  }
  [[nodiscard]] bool contains(ChunkId chunk, Rank more, Rank less) const {
    for (std::size_t w = 0; w < words_; ++w) {
      if ((row(bits_, chunk, less)[w] & ~row(bits_, chunk, more)[w]) != 0) return false;
    }
    return true;
  }

  /// All transfers of a step at once.
  void play(const Step& step) {
    after_.clear();
    for (const Transfer& t : step) {
      after_.insert(after_.end(), row(bits_, t.chunk, t.src), row(bits_, t.chunk, t.src) + words_);
    }
    for (std::size_t i = 0; i < step.size(); ++i) {
      std::uint64_t* to = row(bits_, step[i].chunk, step[i].dst);
      for (std::size_t w = 0; w < words_; ++w) to[w] |= after_[i * words_ + w];
    }
  }

 private:
  int n_;
  std::size_t words_;
  std::vector<std::uint64_t> bits_;
  std::vector<std::uint64_t> after_;
};

Step read_step(const json::Node& node, const Contract& contract) {
  node.expect_members({"sends"}, {"msccl_type", "rounds"});
  const json::Node sends = node.member("sends");
  const int n = contract.outline().world_size;
  Step step;
  for (std::size_t i = 0; i < sends.size(); ++i) {
    const json::Node send = sends.item(i);
    if (send.size() != 3) send.fail("is not [address, source, destination]");
    Transfer t{.src = send.item(1).integer(0, n - 1),
               .dst = send.item(2).integer(0, n - 1),
               .chunk = contract.chunk(send.item(0).integer(0, kMostAddresses))};
    if (t.chunk < 0) send.item(0).fail("is not an address of the collective's chunks");
    if (t.src == t.dst) send.fail("leads from a rank to itself");
    step.push_back(t);
  }
  return step;
}

/// SCCL's sends do not say whether they reduce: shares without a common contribution are added, a
/// share that the arriving one contains is replaced.
void tell_actions(Step& step, Holdings& holdings, const json::Node& node, std::string_view where) {
  for (std::size_t i = 0; i < step.size(); ++i) {
    Transfer& t = step[i];
    if (holdings.disjoint(t.chunk, t.src, t.dst)) {
      t.action = Action::reduce;
    } else if (!holdings.contains(t.chunk, t.src, t.dst)) {
      const json::Node sends = node.member("sends");
      const json::Node send = sends.item(i);
      throw ProgramFault(fmt::format(
          "{}: send {} of a step, of address {} from rank {} to rank {}: both hold a contribution "
          "that the sum would have twice, and the receiver one that a copy would lose",
          where, i, send.item(0).integer(0, kMostAddresses), t.src, t.dst));
    }
  }
  holdings.play(step);
}

}  // namespace

Schedule schedule_from_sccl_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where, kMostMembers);
  const json::Node root(value, where);
  if (!root.has("msccl_type") || root.member("msccl_type").text() != "algorithm") {
    root.fail("no algorithm of SCCL: msccl_type is to be 'algorithm'");
  }
  root.expect_members({"msccl_type", "collective", "steps"},
                      {"name", "instance", "input_map", "output_map", "topology"});
  const json::Node collective = root.member("collective");
  collective.expect_members({"nodes", "chunks"},
                            {"msccl_type", "name", "triggers", "runtime_name"});
  if (collective.has("triggers")) {
    collective.member("triggers").expect_members({});  // chunks that appear on the way
  }
  if (root.has("instance")) {
    const json::Node instance = root.member("instance");
    if (instance.has("pipeline") && !instance.member("pipeline").is_null()) {
      instance.member("pipeline").fail("overlaps runs of the algorithm: no schedule can say that");
    }
  }
  const Contract contract(collective, collective.member("nodes").integer(1, kMostScclRanks));
  Schedule schedule = contract.outline();
  schedule.name = root.has("name") ? root.member("name").text() : "sccl";
  Holdings holdings(contract.combining() ? schedule : Schedule{});
  const json::Node steps = root.member("steps");
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const json::Node node = steps.item(s);
    schedule.steps.push_back(read_step(node, contract));
    if (contract.combining()) {
      tell_actions(schedule.steps.back(), holdings, node, fmt::format("{}: /steps/{}", where, s));
    }
  }
  schedule = normal_form(std::move(schedule));
  if (const auto fault = first_fault(schedule)) {
    throw ProgramFault(fmt::format("{}: {}", where, *fault));
  }
  return schedule;
}

namespace {

/// Where SCCL keeps our chunk: all_to_all is ordered by destination there.
int address_of(const Schedule& schedule, ChunkId chunk) {
  if (schedule.collective.kind != CollectiveKind::all_to_all) return chunk;
  const int n = schedule.world_size;
  const int k = schedule.num_chunks / (n * n);
  const int block = chunk / k;
  return (block % n * n + block / n) * k + chunk % k;
}

std::string list_of(Rank only, int world_size) {
  if (only >= 0) return fmt::format("[{}]", only);
  std::string result = "[0";
  for (Rank rank = 1; rank < world_size; ++rank) result += fmt::format(", {}", rank);
  return result + "]";
}

std::string_view title(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "Allreduce";
    case CollectiveKind::all_gather:
      return "Allgather";
    case CollectiveKind::reduce_scatter:
      return "ReduceScatter";
    case CollectiveKind::all_to_all:
      return "Alltoall";
    case CollectiveKind::broadcast:
      return "Broadcast";
    case CollectiveKind::reduce:
      return "Reduce";
    case CollectiveKind::gather:
      return "Gather";
    case CollectiveKind::scatter:
      return "Scatter";
    case CollectiveKind::barrier:
      break;
  }
  return "Barrier";
}

std::string_view runtime_name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "allreduce";
    case CollectiveKind::all_gather:
      return "allgather";
    case CollectiveKind::reduce_scatter:
      return "reduce_scatter";
    case CollectiveKind::all_to_all:
      return "alltoall";
    default:
      return "custom";
  }
}

std::string collective_text(const Schedule& schedule) {
  const auto [kind, root] = schedule.collective;
  const int n = schedule.world_size;
  const int k = schedule.num_chunks / num_blocks(kind, n);
  std::vector<ChunkId> by_address(schedule.num_chunks);
  for (ChunkId c = 0; c < schedule.num_chunks; ++c) by_address[address_of(schedule, c)] = c;
  std::string chunks;
  for (int address = 0; address < schedule.num_chunks; ++address) {
    const ChunkId chunk = by_address[address];
    for (Rank rank = 0; rank < n; ++rank) {
      if (!starts_at(schedule, chunk, rank)) continue;
      chunks += fmt::format(
          "{}\n   {{\"msccl_type\": \"chunk\", \"pre\": [{}], \"post\": {}, \"addr\": {}}}",
          chunks.empty() ? "" : ",", rank, list_of(destination_of(schedule, chunk), n), address);
    }
  }
  return fmt::format(
      "{{\"msccl_type\": \"collective\", \"name\": \"{}(n={}{}){}\", \"nodes\": {}, "
      "\"runtime_name\": \"{}\", \"triggers\": {{}}, \"chunks\": [{}\n  ]}}",
      title(kind), n, is_rooted(kind) ? fmt::format(",root={}", root) : "",
      k > 1 ? fmt::format(",chunks={}", k) : "", n, runtime_name(kind), chunks);
}

/// Members "RANK": addresses, of what each rank has before (or must have afterwards).
std::string map_text(const Schedule& schedule, bool (*has)(const Schedule&, ChunkId, Rank)) {
  std::string result;
  for (Rank rank = 0; rank < schedule.world_size; ++rank) {
    std::vector<int> addresses;
    for (ChunkId c = 0; c < schedule.num_chunks; ++c) {
      if (has(schedule, c, rank)) addresses.push_back(address_of(schedule, c));
    }
    if (addresses.empty()) continue;
    std::sort(addresses.begin(), addresses.end());
    result += fmt::format("{}\n  \"{}\": [{}]", result.empty() ? "" : ",", rank,
                          fmt::join(addresses, ", "));
  }
  return result;
}

/// A copy that loses what the receiver held has no counterpart in sets that only grow.
void refuse_losing_copies(const Schedule& schedule) {
  if (!is_combining(schedule.collective.kind)) return;
  Holdings holdings(schedule);
  for (std::size_t s = 0; s < schedule.steps.size(); ++s) {
    for (const Transfer& t : schedule.steps[s]) {
      if (t.action == Action::reduce || holdings.contains(t.chunk, t.src, t.dst)) continue;
      throw InputError(
          fmt::format("'{}' step {}: rank {} overwrites what it holds of chunk {} by less, which "
                      "SCCL's sends cannot express",
                      schedule.name, s, t.dst, t.chunk));
    }
    holdings.play(schedule.steps[s]);
  }
}

}  // namespace

std::string to_sccl_json(const Schedule& schedule) {
  if (!schedule.symmetry.empty()) return to_sccl_json(expanded(schedule));
  if (const auto fault = first_fault(schedule)) {
    throw InputError(fmt::format("'{}' is wrong and is not written: {}", schedule.name, *fault));
  }
  const CollectiveKind kind = schedule.collective.kind;
  if (kind == CollectiveKind::barrier) {
    throw InputError(fmt::format("'{}' is a barrier, which SCCL cannot express", schedule.name));
  }
  refuse_losing_copies(schedule);
  const int n = schedule.world_size;
  std::vector<std::vector<int>> links(n, std::vector<int>(n));
  std::string steps;
  int extra_rounds = 0;
  for (const Step& step : schedule.steps) {
    std::map<std::pair<Rank, Rank>, int> sends;
    std::string list;
    int rounds = 1;
    for (const Transfer& t : step) {
      links[t.dst][t.src] = 1;
      rounds = std::max(rounds, ++sends[{t.src, t.dst}]);
      list += fmt::format("{}[{}, {}, {}]", list.empty() ? "" : ", ", address_of(schedule, t.chunk),
                          t.src, t.dst);
    }
    extra_rounds += rounds - 1;
    steps += fmt::format("{}\n  {{\"msccl_type\": \"step\", \"rounds\": {}, \"sends\": [{}]}}",
                         steps.empty() ? "" : ",", rounds, list);
  }
  std::string rows;
  for (const auto& row : links) {
    rows += fmt::format("{}\n   [{}]", rows.empty() ? "" : ",", fmt::join(row, ", "));
  }
  return fmt::format(
      "{{\n \"msccl_type\": \"algorithm\",\n \"name\": {},\n"
      " \"instance\": {{\"msccl_type\": \"instance\", \"steps\": {}, \"extra_rounds\": {}, "
      "\"chunks\": {}, \"pipeline\": null, \"extra_memory\": null, \"allow_exchange\": false}},\n"
      " \"input_map\": {{{}\n }},\n \"output_map\": {{{}\n }},\n \"steps\": [{}\n ],\n"
      " \"collective\": {},\n"
      " \"topology\": {{\"msccl_type\": \"topology\", \"name\": \"needed\", \"switches\": [], "
      "\"links\": [{}\n  ]}}\n}}\n",
      json::quote(schedule.name), schedule.steps.size(), extra_rounds,
      schedule.num_chunks / num_blocks(kind, n), map_text(schedule, starts_at),
      map_text(schedule, wanted_at), steps, collective_text(schedule), rows);
}

}  // namespace chorus::formats
