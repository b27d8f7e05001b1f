#include "topology/discover/rates.hpp"

namespace chorus {

// Table of NCCL's topology model; processors it does not know are taken as Skylake.
double socket_gb_s(std::string_view vendor, int family, int model, std::string_view name) {
  constexpr int kSkylakeSp = 85;
  constexpr int kSapphireRapids = 143;
  constexpr int kEmeraldRapids = 207;
  constexpr int kGraniteRapids = 173;
  if (vendor == "AuthenticAMD" || vendor == "HygonGenuine") return 16;
  if (name.starts_with("POWER")) return 32;
  if (vendor == "GenuineIntel" && family == 6) {
    if (model == kEmeraldRapids || model == kGraniteRapids) return 40;
    if (model >= kSapphireRapids) return 22;
    return model >= kSkylakeSp ? 10 : 6;
  }
  return vendor == "ARM" ? 6 : 10;
}

}  // namespace chorus
