// schedule_from_msccl_xml(): parse, replay, write down.
#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <tuple>

#include "formats/msccl_program.hpp"
#include "formats/msccl_replay.hpp"
#include "formats/msccl_schedule.hpp"
#include "formats/msccl_xml.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::formats {
namespace {

struct Name {
  std::string_view spelled;
  CollectiveKind kind;
};

constexpr Name kCollectiveNames[] = {
    {"allreduce", CollectiveKind::all_reduce},
    {"allgather", CollectiveKind::all_gather},
    {"reduce_scatter", CollectiveKind::reduce_scatter},
    {"reducescatter", CollectiveKind::reduce_scatter},  // RCCL's spelling
    {"alltoall", CollectiveKind::all_to_all},
    {"broadcast", CollectiveKind::broadcast},
    {"reduce", CollectiveKind::reduce},
    {"gather", CollectiveKind::gather},
    {"scatter", CollectiveKind::scatter},
};

/// What a custom program may turn out to be.
constexpr CollectiveKind kGuesses[] = {
    CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
    CollectiveKind::all_to_all, CollectiveKind::broadcast,  CollectiveKind::reduce,
    CollectiveKind::gather,     CollectiveKind::scatter,
};

/// The schedule to be, without steps. nchunksperloop counts the larger of a rank's two buffers.
Schedule outline_of(const MscclAlgo& algo, Collective collective, std::string_view where) {
  const int n = static_cast<int>(algo.gpus.size());
  const int blocks = num_blocks(collective.kind, n);
  const int larger = blocks == 1 ? 1 : n;  // blocks of the larger buffer
  if (algo.chunks % larger != 0) {
    throw InputError(fmt::format(
        "{}:{}: <algo> has nchunksperloop=\"{}\", which is not a multiple of the {} blocks of {}",
        where, algo.line, algo.chunks, larger, name_of(collective.kind)));
  }
  long long places = 0;
  for (const MscclGpu& gpu : algo.gpus) places += 2LL * algo.chunks + gpu.scratch_chunks;
  constexpr long long kMostPlaces = 1 << 22;
  if (places > kMostPlaces) {
    throw InputError(
        fmt::format("{}:{}: <algo> speaks of {} chunks of memory, more than the {} "
                    "that can be judged",
                    where, algo.line, places, kMostPlaces));
  }
  return {.name = algo.name.empty() ? "msccl" : algo.name,
          .collective = collective,
          .world_size = n,
          .num_chunks = algo.chunks / larger * blocks,
          .steps = {}};
}

/// Keeps what the replay has to remember within bounds that real files are far from.
void refuse_giants(const MscclAlgo& algo, std::string_view where) {
  long long blocks = 0;
  long long steps = 0;
  long long chunks = 0;
  for (const MscclGpu& gpu : algo.gpus) {
    blocks += static_cast<long long>(gpu.blocks.size());
    for (const MscclBlock& block : gpu.blocks) {
      steps += static_cast<long long>(block.steps.size());
      for (const MscclStep& step : block.steps) chunks += step.count;
    }
  }
  if (blocks * (blocks + steps) <= 1LL << 26 && chunks <= 1LL << 22) return;
  throw InputError(fmt::format(
      "{}:{}: <algo> has {} threadblocks, {} steps and moves {} chunks, more than can be judged",
      where, algo.line, blocks, steps, chunks));
}

/// Steps of all messages, as the file gives them (`level`); nothing unless it does for all.
std::optional<std::vector<int>> levels_given(const MscclAlgo& algo, const Trace& trace) {
  std::vector<int> result;
  for (const MessageEnds& ends : trace.messages) {
    const StepRef& at = ends.sent;
    result.push_back(algo.gpus[at.rank].blocks[at.block].steps[at.step].level);
    if (result.back() < 0) return std::nullopt;
  }
  return result;
}

class Import {
 public:
  Import(const MscclAlgo& algo, Schedule outline, std::string_view where)
      : algo_(algo), outline_(std::move(outline)), where_(where) {}

  Schedule schedule() {
    // The form that the schedule is taken from; the other one must work as well.
    trace_ = replay(algo_, outline_, {.in_place = !algo_.out_of_place}, where_);
    if (algo_.out_of_place && algo_.in_place) {
      try {
        (void)replay(algo_, outline_, {.in_place = true}, where_);
      } catch (const ProgramFault& fault) {
        throw ProgramFault(std::string(fault.what()) + " (in place, as inplace=\"1\" promises)");
      }
    }
    versions_ = versions(algo_, outline_, trace_, where_);
    const std::vector<int> levels = levels_of_moves();
    Schedule result = outline_;
    for (std::size_t m = 0; m < trace_.moves.size(); ++m) {
      if (!versions_.live[m]) continue;
      if (levels[m] >= static_cast<int>(result.steps.size())) result.steps.resize(levels[m] + 1);
      const Move& move = trace_.moves[m];
      result.steps[levels[m]].push_back({move.src, move.dst, move.chunk, versions_.action[m]});
    }
    result = normal_form(std::move(result));
    if (const auto fault = first_fault(result)) {
      throw ProgramFault(fmt::format("{}:{}: no schedule says what the programs do: {}", where_,
                                     algo_.line, *fault));
    }
    return result;
  }

 private:
  std::vector<int> levels_of_moves() const {
    if (auto given = levels_given(algo_, trace_)) return checked(*given);
    const auto message = [&](int move) { return trace_.moves[move].message; };
    std::vector<Precedence> data;
    for (const Precedence& p : versions_.ordering) {
      data.push_back({message(p.before), message(p.after), p.strict});
    }
    int count = static_cast<int>(trace_.messages.size());
    std::vector<Precedence> all = program_order(algo_, trace_, count);
    all.insert(all.end(), data.begin(), data.end());
    if (const auto levels = earliest_levels(count, all)) return of_moves(*levels);
    // The program overlaps what a schedule cannot; then at least what depends on what.
    count = static_cast<int>(trace_.messages.size());
    if (const auto levels = earliest_levels(count, data)) return of_moves(*levels);
    count = static_cast<int>(trace_.moves.size());
    if (const auto levels = earliest_levels(count, versions_.ordering)) return *levels;
    throw ProgramFault(
        fmt::format("{}:{}: ranks keep several values of a chunk side by side in a circle; a "
                    "schedule has one value per rank and chunk and cannot express this",
                    where_, algo_.line));
  }

  std::vector<int> of_moves(const std::vector<int>& levels) const {
    std::vector<int> result;
    for (const Move& move : trace_.moves) result.push_back(levels[move.message]);
    return result;
  }

  /// Levels that a file states must not contradict its programs. Empty steps go, which also keeps
  /// the highest level within the number of messages.
  std::vector<int> checked(std::vector<int> levels) const {
    for (const auto& [before, after, strict] : versions_.ordering) {
      const int first = levels[trace_.moves[before].message];
      const int second = levels[trace_.moves[after].message];
      if (first < second || (first == second && !strict)) continue;
      throw ProgramFault(fmt::format(
          "{} has level=\"{}\", but needs {} of level=\"{}\" first",
          describe(algo_, trace_.messages[trace_.moves[after].message].sent, where_), second,
          describe(algo_, trace_.messages[trace_.moves[before].message].sent, where_), first));
    }
    std::vector<int> used = levels;
    std::sort(used.begin(), used.end());
    used.erase(std::unique(used.begin(), used.end()), used.end());
    for (int& level : levels) {
      level = static_cast<int>(std::lower_bound(used.begin(), used.end(), level) - used.begin());
    }
    return of_moves(levels);
  }

  const MscclAlgo& algo_;
  Schedule outline_;
  std::string_view where_;
  Trace trace_;
  Versions versions_;
};

/// The first of `candidates` that the programs keep; the complaint about the first if none.
Schedule first_kept(const MscclAlgo& algo, std::span<const Collective> candidates,
                    std::string_view where) {
  std::exception_ptr complaint;
  for (const Collective& collective : candidates) {
    try {
      return Import(algo, outline_of(algo, collective, where), where).schedule();
    } catch (const Error&) {
      if (!complaint) complaint = std::current_exception();
    }
  }
  std::rethrow_exception(complaint);
}

/// With every root, where the kind has one: the format does not name it.
void add_candidates(std::vector<Collective>& candidates, CollectiveKind kind, int world_size) {
  for (Rank root = 0; root < (is_rooted(kind) ? world_size : 1); ++root) {
    candidates.push_back({kind, root});
  }
}

Schedule custom(const MscclAlgo& algo, std::string_view where) {
  std::vector<Collective> candidates;
  for (const CollectiveKind kind : kGuesses) {
    add_candidates(candidates, kind, static_cast<int>(algo.gpus.size()));
  }
  try {
    return first_kept(algo, candidates, where);
  } catch (const Error& error) {
    throw ProgramFault(
        fmt::format("{}:{}: <algo> has coll=\"custom\" and fulfils the contract of no collective "
                    "that Chorus knows (as all_reduce: {})",
                    where, algo.line, error.what()));
  }
}

}  // namespace

Schedule schedule_from_msccl_xml(std::string_view text, std::string_view where) {
  const MscclAlgo algo = parse_msccl_xml(text, where);
  refuse_giants(algo, where);
  if (algo.collective == "custom") return custom(algo, where);
  for (const auto& [spelled, kind] : kCollectiveNames) {
    if (algo.collective != spelled) continue;
    std::vector<Collective> candidates;
    add_candidates(candidates, kind, static_cast<int>(algo.gpus.size()));
    return first_kept(algo, candidates, where);
  }
  std::string known = "custom";
  for (const auto& [spelled, kind] : kCollectiveNames) known += fmt::format(", {}", spelled);
  throw InputError(
      fmt::format("{}:{}: <algo> has coll=\"{}\", which no schedule can be: known are "
                  "{}",
                  where, algo.line, algo.collective, known));
}

Schedule normal_form(Schedule schedule) {
  for (Step& step : schedule.steps) {
    const auto key = [](const Transfer& t) { return std::tie(t.src, t.dst, t.chunk, t.action); };
    std::sort(step.begin(), step.end(),
              [&](const Transfer& a, const Transfer& b) { return key(a) < key(b); });
    step.erase(std::unique(step.begin(), step.end()), step.end());
  }
  std::erase_if(schedule.steps, [](const Step& step) { return step.empty(); });
  return schedule;
}

}  // namespace chorus::formats
