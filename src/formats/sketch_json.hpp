// Sketches in JSON: Chorus's own form and TACCL's; and TACCL's topologies.
#pragma once

#include <string>
#include <string_view>

#include "chorus/topology.hpp"
#include "model/schedule/sketch.hpp"

namespace chorus::formats {

/// Either form (docs/sketches.md), told apart by "format". Throws InputError beginning with `where`
/// and the line and column, or the path of the offending member. Whether the sketch fits a topology
/// is not judged here.
[[nodiscard]] Sketch sketch_from_json(std::string_view text, std::string_view where);
/// In Chorus's own form; sketch_from_json() gives it back equal, but for `ignored`.
[[nodiscard]] std::string to_json(const Sketch& sketch);

/// Whether the text is a topology of TACCL.
[[nodiscard]] bool is_taccl_topology(std::string_view text);

/// So many boxes of the kind described. Alphas are in µs, betas in µs per MB (10⁶ bytes); `links`,
/// `betas` and `invbws` are [dst][src]. Without them: two betas are those of the double and single
/// NVLinks of an NDv2, one is that of GPUs behind a switch. Network cards are shared by GPUs in a
/// row, equally many each. Throws InputError as above, also where an invbw is not alpha + beta to
/// within 1 µs, what TACCL's own rounding leaves.
[[nodiscard]] Topology topology_from_taccl_json(std::string_view text, std::string_view where,
                                                int hosts = 1);

}  // namespace chorus::formats
