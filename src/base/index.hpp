#pragma once

#include <cstddef>

namespace chorus {

/// Where `index` stands in a container. Ranks, nodes, links and chunks are int throughout, so that
/// -1 can say "none"; who indexes with one has excluded that.
constexpr std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }

}  // namespace chorus
