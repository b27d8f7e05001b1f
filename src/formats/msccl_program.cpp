#include "formats/msccl_program.hpp"

#include <array>

namespace chorus::formats {
namespace {

struct Traits {
  std::string_view name;
  bool receives, sends, reads, writes, reduces;
};

constexpr std::array<Traits, 9> kStepTypes{{
    {"s", false, true, true, false, false},
    {"r", true, false, false, true, false},
    {"rcs", true, true, false, true, false},
    {"rrs", true, true, true, false, true},
    {"rrc", true, false, true, true, true},
    {"rrcs", true, true, true, true, true},
    {"cpy", false, false, true, true, false},
    {"re", false, false, true, true, true},
    {"nop", false, false, false, false, false},
}};

const Traits& traits(StepType type) { return kStepTypes[static_cast<std::size_t>(type)]; }

}  // namespace

std::string_view name_of(StepType type) { return traits(type).name; }
bool receives(StepType type) { return traits(type).receives; }
bool sends(StepType type) { return traits(type).sends; }
bool reads(StepType type) { return traits(type).reads; }
bool writes(StepType type) { return traits(type).writes; }
bool reduces(StepType type) { return traits(type).reduces; }

}  // namespace chorus::formats
