// all_reduce that is not made of a reduce_scatter and an all_gather.
#pragma once

#include "synth/exact/encoding.hpp"

namespace chorus::synth::exact {

/// Is there an all_reduce in which every chunk is reduced along a tree to some rank and copied from
/// there along another tree? Different chunks overlap, so that one that has come back early uses
/// what others do not: on meshes that takes fewer rounds than two halves one after the other.
///
/// "Impossible" says so of trees alone. As ask() otherwise; problem.seeds have no origin.
[[nodiscard]] Solution ask_trees(const Problem& problem, const Shape& shape, const Budget& budget,
                                 unsigned work = 0);

}  // namespace chorus::synth::exact
