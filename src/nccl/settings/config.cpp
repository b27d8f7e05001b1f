#include "nccl/settings/config.hpp"

#include <algorithm>
#include <cstring>

#include "nccl/fault.hpp"

namespace chorus::nccl {
namespace {

constexpr unsigned kMagic = 0xcafebeef;

/// Fields came with these versions; a caller of an older one has left them unset, whatever lies
/// there.
void forget_newer_fields(ncclConfig_t& config) {
  const unsigned version = config.version;
  if (version < NCCL_VERSION(2, 14, 0)) config.blocking = NCCL_CONFIG_UNDEF_INT;
  if (version < NCCL_VERSION(2, 17, 0)) {
    config.cgaClusterSize = config.minCTAs = config.maxCTAs = NCCL_CONFIG_UNDEF_INT;
    config.netName = nullptr;
  }
  if (version < NCCL_VERSION(2, 18, 0)) config.splitShare = NCCL_CONFIG_UNDEF_INT;
  if (version < NCCL_VERSION(2, 25, 0)) config.trafficClass = NCCL_CONFIG_UNDEF_INT;
  if (version < NCCL_VERSION(2, 27, 0)) {
    config.commName = nullptr;
    config.collnetEnable = config.CTAPolicy = config.shrinkShare = config.nvlsCTAs =
        NCCL_CONFIG_UNDEF_INT;
  }
  if (version < NCCL_VERSION(2, 28, 0)) {
    config.nChannelsPerNetPeer = config.nvlinkCentricSched = NCCL_CONFIG_UNDEF_INT;
  }
}

void check(const char* field, int value, int low, int high) {
  if (value == NCCL_CONFIG_UNDEF_INT || (value >= low && value <= high)) return;
  refuse(ncclInvalidArgument, "ncclConfig_t: {} is {}, but must be in [{}, {}] or undefined", field,
         value, low, high);
}

void check_all(const ncclConfig_t& config) {
  check("blocking", config.blocking, 0, 1);
  check("cgaClusterSize", config.cgaClusterSize, 0, 8);
  check("minCTAs", config.minCTAs, 1, INT_MAX);
  check("maxCTAs", config.maxCTAs, 1, INT_MAX);
  if (config.minCTAs != NCCL_CONFIG_UNDEF_INT && config.maxCTAs != NCCL_CONFIG_UNDEF_INT &&
      config.minCTAs > config.maxCTAs) {
    refuse(ncclInvalidArgument, "ncclConfig_t: minCTAs {} is larger than maxCTAs {}",
           config.minCTAs, config.maxCTAs);
  }
  check("splitShare", config.splitShare, 0, 1);
  check("collnetEnable", config.collnetEnable, 0, 1);
  check("CTAPolicy", config.CTAPolicy, 0, NCCL_CTA_POLICY_EFFICIENCY | NCCL_CTA_POLICY_ZERO);
  check("shrinkShare", config.shrinkShare, 0, 1);
  check("nvlsCTAs", config.nvlsCTAs, 1, INT_MAX);
  check("nChannelsPerNetPeer", config.nChannelsPerNetPeer, 1, INT_MAX);
  check("nvlinkCentricSched", config.nvlinkCentricSched, 0, 1);
}

}  // namespace

Config read_config(const ncclConfig_t* given, const Config& inherited) {
  if (given == nullptr) return inherited;
  if (given->size < offsetof(ncclConfig_t, blocking) || given->magic != kMagic) {
    refuse(ncclInvalidArgument,
           "ncclConfig_t was not initialized: begin with ncclConfig_t config = "
           "NCCL_CONFIG_INITIALIZER");
  }
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  std::memcpy(&config, given, std::min(given->size, sizeof config));
  forget_newer_fields(config);
  check_all(config);
  Config result = inherited;
  if (config.blocking != NCCL_CONFIG_UNDEF_INT) result.blocking = config.blocking == 1;
  if (config.commName != nullptr) result.name = config.commName;
  if (config.netName != nullptr) result.net = config.netName;
  return result;
}

}  // namespace chorus::nccl
