// Algorithms and topologies as SCCL and msccl-tools keep them, in JSON.
#pragma once

#include <string>
#include <string_view>

#include "chorus/schedule.hpp"
#include "chorus/topology.hpp"
#include "formats/fault.hpp"

namespace chorus::formats {

/// Reads an algorithm. Which collective it is, follows from where its chunks begin and must end;
/// whether a send copies or reduces, from what both ranks hold. Rounds and topology are left
/// behind.
///
/// The Schedule that comes back passes first_fault() and is in normal_form(). `where` (a file
/// name) begins every message. Throws InputError with line and column or the path of the offending
/// member, ProgramFault if the algorithm does not keep its promise or a Schedule cannot say it.
[[nodiscard]] Schedule schedule_from_sccl_json(std::string_view text, std::string_view where);

/// The algorithm with the topology it needs: a link for each pair of ranks that exchange anything,
/// and in each step as many rounds as its busiest link has sends. Throws InputError for a barrier.
[[nodiscard]] std::string to_sccl_json(const Schedule& schedule);

/// What the unit of SCCL's links is taken for.
struct ScclLinks {
  double gb_s = 25;       ///< one unit carries 10⁹ bytes per second times this
  double alpha_s = 7e-7;  ///< every message takes this long, whatever its size
};

/// Whether the text is a topology (and no algorithm, which contains one).
[[nodiscard]] bool is_sccl_topology(std::string_view text);

/// Ranks are GPUs of one host; links[dst][src] units wide; a switch is a port group of all links
/// from its sources to its destinations. Throws InputError as above.
[[nodiscard]] Topology topology_from_sccl_json(std::string_view text, std::string_view where,
                                               const ScclLinks& links = {});

/// Links between ranks in units of `links.gb_s`, rounded, at least 1. Throws InputError if links go
/// through anything but ranks, which the format has no word for.
[[nodiscard]] std::string topology_to_sccl_json(const Topology& topology,
                                                const ScclLinks& links = {});

}  // namespace chorus::formats
