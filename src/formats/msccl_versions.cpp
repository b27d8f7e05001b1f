#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "formats/msccl_schedule.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::formats {
namespace {

/// A value of a chunk that a rank sends on or ends with.
struct Use {
  bool own = false;
  std::vector<int> arrivals;  // in the order of folding
  std::vector<int> sorted;
  std::vector<int> senders;  // moves that send it
  bool final = false;
};

bool contains(const Use& more, const Use& less) {
  return std::includes(more.sorted.begin(), more.sorted.end(), less.sorted.begin(),
                       less.sorted.end());
}

/// What becomes of one chunk at one rank.
class Row {
 public:
  Use& use(const MscclValue& value) {
    std::vector<int> sorted = value.arrivals;
    std::sort(sorted.begin(), sorted.end());
    for (Use& known : uses_) {
      if (known.own == value.own && known.sorted == sorted) return known;
    }
    uses_.push_back({.own = value.own,
                     .arrivals = value.arrivals,
                     .sorted = std::move(sorted),
                     .senders = {},
                     .final = false});
    return uses_.back();
  }

  /// A use that does not fit, if there is one; else all of it is in `versions`.
  const Use* write(const Trace& trace, Versions& versions) {
    std::stable_sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) {
      return std::pair(!a.own, a.sorted.size()) < std::pair(!b.own, b.sorted.size());
    });
    if (const Use* stray = make_chains(trace)) return stray;
    const Use* previous = nullptr;
    for (const auto& chain : chains_) {
      const int base = chain.front()->own ? -1 : chain.front()->arrivals.front();
      const Use* within = nullptr;
      for (const Use* use : chain) {
        if (previous != nullptr && previous->final) return previous;
        write(*use, within, previous, base, versions);
        within = previous = use;
      }
    }
    return nullptr;
  }

 private:
  /// Chains of growing sums: first the one that holds the rank's own share, then those that begin
  /// with a copy, in the order in which it arrived, but what the rank ends with last.
  const Use* make_chains(const Trace& trace) {
    std::map<int, int> chain_of;  // arrival to chain
    for (const Use& use : uses_) {
      int chain = -1;
      for (std::size_t c = 0; c < chains_.size(); ++c) {
        if (chains_[c].front()->own == use.own && contains(use, *chains_[c].back())) {
          chain = static_cast<int>(c);
        }
      }
      if (chain < 0) {
        if (use.own && !chains_.empty()) return &use;
        chain = static_cast<int>(chains_.size());
        chains_.emplace_back();
      }
      chains_[chain].push_back(&use);
      for (const int arrival : use.arrivals) {
        if (chain_of.try_emplace(arrival, chain).first->second != chain) return &use;
      }
    }
    const auto key = [&](const std::vector<const Use*>& chain) {
      const Use& first = *chain.front();
      if (first.own) return std::pair(-1, 0);
      const int message = trace.moves[first.arrivals.front()].message;
      return std::pair(chain.back()->final ? 1 : 0, trace.messages[message].received_at);
    };
    std::stable_sort(chains_.begin(), chains_.end(),
                     [&](const auto& a, const auto& b) { return key(a) < key(b); });
    return nullptr;
  }

  /// `within`: the version before in the same chain; `previous`: before in the row.
  static void write(const Use& use, const Use* within, const Use* previous, int base,
                    Versions& versions) {
    for (const int arrival : use.arrivals) {
      for (const int sender : use.senders) versions.ordering.push_back({arrival, sender, true});
      if (within != nullptr &&
          std::binary_search(within->sorted.begin(), within->sorted.end(), arrival)) {
        continue;
      }
      versions.action[arrival] = arrival == base ? Action::copy : Action::reduce;
      if (base >= 0 && arrival != base) versions.ordering.push_back({base, arrival, true});
      if (previous == nullptr) continue;
      for (const int sender : previous->senders) {
        versions.ordering.push_back({sender, arrival, false});
      }
    }
  }

  std::vector<Use> uses_;
  std::vector<std::vector<const Use*>> chains_;
};

/// Marks the moves that results depend on.
void mark_live(const Trace& trace, Versions& versions) {
  std::vector<char> seen(trace.values.size());
  std::vector<int> open;
  const auto need = [&](int value) {
    if (std::exchange(seen[value], 1) == 0) open.push_back(value);
  };
  for (const auto& outputs : trace.outputs) {
    for (const int value : outputs) need(value);
  }
  while (!open.empty()) {
    const int value = open.back();
    open.pop_back();
    for (const int move : trace.values[value].arrivals) {
      versions.live[move] = 1;
      need(trace.moves[move].value);
    }
  }
}

}  // namespace

Versions versions(const MscclAlgo& algo, const Schedule& outline, const Trace& trace,
                  std::string_view where) {
  Versions result{.live = std::vector<char>(trace.moves.size()),
                  .action = std::vector<Action>(trace.moves.size(), Action::copy),
                  .ordering = {}};
  if (!is_combining(outline.collective.kind)) {
    std::fill(result.live.begin(), result.live.end(), 1);
    for (std::size_t m = 0; m < trace.moves.size(); ++m) {
      for (const int arrival : trace.values[trace.moves[m].value].arrivals) {
        result.ordering.push_back({arrival, static_cast<int>(m), true});
      }
    }
    return result;
  }
  mark_live(trace, result);
  std::map<std::pair<Rank, ChunkId>, Row> rows;
  for (std::size_t m = 0; m < trace.moves.size(); ++m) {
    if (!result.live[m]) continue;
    const MscclValue& value = trace.values[trace.moves[m].value];
    rows[{value.rank, value.chunk}].use(value).senders.push_back(static_cast<int>(m));
  }
  for (std::size_t rank = 0; rank < trace.outputs.size(); ++rank) {
    for (const int output : trace.outputs[rank]) {
      const MscclValue& value = trace.values[output];
      rows[{static_cast<Rank>(rank), value.chunk}].use(value).final = true;
    }
  }
  for (auto& [key, row] : rows) {
    const Use* stray = row.write(trace, result);
    if (stray == nullptr) continue;
    const Rank rank = key.first;
    const std::string subject =
        stray->arrivals.empty()
            ? fmt::format("{}:{}: rank {}", where, algo.gpus[rank].line, rank)
            : describe(algo, trace.messages[trace.moves[stray->arrivals.back()].message].received,
                       where);
    throw ProgramFault(fmt::format(
        "{}: rank {} keeps two values of chunk {} side by side (one it passes on, one it goes on "
        "reducing); a schedule has one value per rank and chunk and cannot express this",
        subject, rank, key.second));
  }
  return result;
}

}  // namespace chorus::formats
