#include "collectives/algorithms.hpp"

#include <fmt/format.h>

#include <array>
#include <vector>

#include "base/text/suggest.hpp"
#include "chorus/error.hpp"
#include "collectives/families.hpp"
#include "collectives/steps.hpp"
#include "model/schedule/contract.hpp"

namespace chorus {
namespace {

using enum CollectiveKind;
using WhyNot = std::optional<std::string>;

constexpr unsigned bit(CollectiveKind kind) { return 1U << static_cast<unsigned>(kind); }

/// Kinds that have a compact form; at world sizes that are powers of two.
struct Compact {
  unsigned kinds = 0;
  unsigned at_powers_of_two = 0;
};

template <CollectiveKind... kKinds>
constexpr Compact kCompact{.kinds = (bit(kKinds) | ...)};
constexpr Compact kEvery{.kinds = ~0U};
constexpr Compact kNone{};

WhyNot no_compact_form(const Compact& compact, const AlgorithmInput& input) {
  if (!input.compact || (compact.kinds & bit(input.kind)) != 0) return std::nullopt;
  if ((compact.at_powers_of_two & bit(input.kind)) == 0) {
    return fmt::format("would list too many transfers for {} ranks", input.world_size);
  }
  if (input.world_size == floor_power_of_two(input.world_size)) return std::nullopt;
  return fmt::format("would list too many transfers for {} ranks, which is not a power of two",
                     input.world_size);
}

/// Serves these kinds at any world size.
template <Compact kForms, CollectiveKind... kKinds>
WhyNot only(const AlgorithmInput& input) {
  if (input.world_size < 1) return fmt::format("world size {} is below 1", input.world_size);
  if (((input.kind == kKinds) || ...)) return no_compact_form(kForms, input);
  return fmt::format("does not implement {}", name_of(input.kind));
}

/// Serves these kinds where the group has at least two levels.
template <CollectiveKind... kKinds>
WhyNot only_levels(const AlgorithmInput& input) {
  if (WhyNot why = only<kEvery, kKinds...>(input)) return why;
  long long product = 1;
  int levels = 0;
  for (const int size : input.levels) {
    if (size < 1) return fmt::format("a level of {} ranks is impossible", size);
    product *= size;
    if (product > input.world_size) break;
    if (size > 1) ++levels;
  }
  if (!input.levels.empty() && product != input.world_size) {
    return fmt::format("the levels {} do not multiply to {} ranks", fmt::join(input.levels, " x "),
                       input.world_size);
  }
  if (levels < 2) return "needs a hierarchy of at least two levels of more than one rank";
  return std::nullopt;
}

constexpr std::array kAlgorithms{
    Algorithm{"ring",
              "n−1 steps to the next rank per phase, each byte crosses each link once: best for "
              "large messages (Patarasuk & Yuan 2009)",
              only<kEvery, all_reduce, all_gather, reduce_scatter>, make_ring},
    Algorithm{"chain",
              "a pipeline from rank to rank: each rank sends the data once (Thakur, Rabenseifner & "
              "Gropp 2005)",
              only<kNone, broadcast, reduce>, make_chain},
    Algorithm{
        "recursive_doubling",
        "exchanges with partners at distances 1, 2, 4, …: fewest steps, best for small "
        "messages (Thakur, Rabenseifner & Gropp 2005)",
        only<Compact{.kinds = bit(all_reduce) | bit(barrier), .at_powers_of_two = bit(all_gather)},
             all_reduce, all_gather, barrier>,
        make_recursive_doubling},
    Algorithm{"recursive_halving",
              "exchanges halves, quarters, … with partners at distances n/2, n/4, …: recursive "
              "doubling backwards (Thakur, Rabenseifner & Gropp 2005)",
              only<Compact{.at_powers_of_two = bit(reduce_scatter)}, reduce_scatter>,
              make_recursive_halving},
    Algorithm{"recursive_halving_doubling",
              "recursive halving, then recursive doubling: logarithmic steps and, for powers of "
              "two, least bytes (Rabenseifner 2004)",
              only<Compact{.at_powers_of_two = bit(all_reduce)}, all_reduce, broadcast, reduce>,
              make_recursive_halving_doubling},
    Algorithm{"binomial_tree",
              "every holder passes on to one more rank per step: ceil(log2 n) steps per phase "
              "(Thakur, Rabenseifner & Gropp 2005)",
              only<kEvery, all_reduce, broadcast, reduce, gather, scatter, barrier>,
              make_binomial_tree},
    Algorithm{"double_binary_tree",
              "two pipelined binary trees, each rank an inner node of at most one: logarithmic "
              "latency at full bandwidth (Sanders, Speck & Träff 2009)",
              only<kEvery, all_reduce, broadcast, reduce>, make_double_binary_tree},
    Algorithm{"bruck",
              "distances 1, 2, 4, … around the circle of ranks: ceil(log2 n) steps per phase at "
              "any world size (Bruck et al. 1997)",
              only<kEvery, all_reduce, all_gather, reduce_scatter, all_to_all>, make_bruck},
    Algorithm{"two_hop",
              "a block goes by one rank in between, so that each rank has about 2√n partners "
              "instead of n−1 (Bruck et al. 1997, in base √n)",
              only<kEvery, all_to_all>, make_two_hop},
    Algorithm{"pairwise",
              "n−1 exchanges with one rank each, nothing relayed (Thakur, Rabenseifner & Gropp "
              "2005)",
              only<kEvery, all_gather, reduce_scatter, all_to_all>, make_pairwise, false, true},
    Algorithm{
        "one_shot",
        "one step in which every rank sends straight to all that need its data: least "
        "latency (MSCCL's all-pairs; Cowan et al. 2023)",
        only<kCompact<all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter>,
             all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce, gather, scatter,
             barrier>,
        make_one_shot, true, true},
    Algorithm{"two_shot",
              "two steps: each rank combines one piece of all ranks' data, then passes it on "
              "(MSCCL's all-pairs; Cowan et al. 2023)",
              only<kCompact<all_reduce>, all_reduce, broadcast, reduce>, make_two_shot, true, true},
    Algorithm{"scatter_all_gather",
              "a binomial scatter, then a ring all-gather; reduce is the same backwards (van de "
              "Geijn's algorithm; Barnett et al. 1994)",
              only<kNone, broadcast, reduce>, make_scatter_all_gather},
    Algorithm{"blueconnect",
              "rings inside each level of the hierarchy, outer levels carrying only what inner "
              "ones left over (Cho et al. 2019)",
              only_levels<all_reduce, all_gather, reduce_scatter>, make_blueconnect},
    Algorithm{"hierarchical",
              "direct exchange inside each level of the hierarchy, all ranks of a host sharing "
              "its network (after Cho et al. 2019; Sanders & Träff 2002)",
              only_levels<all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce,
                          gather, scatter>,
              make_hierarchical},
    Algorithm{"two_level",
              "one leader per innermost group speaks for it; leaders use recursive doubling or a "
              "binomial tree: few small messages between hosts (Graham et al. 2011)",
              only_levels<all_reduce, broadcast, reduce, barrier>, make_two_level},
    Algorithm{"dissemination",
              "in step k each rank tells the one 2^k further: ceil(log2 n) steps (Hensgen, Finkel "
              "& Manber 1988)",
              only<kEvery, barrier>, make_dissemination},
};

}  // namespace

std::span<const Algorithm> algorithms() { return kAlgorithms; }

const Algorithm& algorithm(std::string_view name) {
  std::vector<std::string_view> known;
  for (const Algorithm& candidate : kAlgorithms) {
    if (candidate.name == name) return candidate;
    known.push_back(candidate.name);
  }
  throw InputError(fmt::format("there is no algorithm \"{}\": {}use one of {}", name,
                               hint(name, known), fmt::join(known, ", ")));
}

}  // namespace chorus
