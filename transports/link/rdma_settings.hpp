// What a user may say about RDMA devices, in the terms that operators know from NCCL.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace chorus {

/// Options of the rdma transport (docs/transports/rdma.md); defaults are right for most fabrics.
struct RdmaSettings {
  /// Which adapters: "mlx5_0:1,mlx5_1", a leading "^" excludes, "=" wants whole names, else names
  /// match by their beginning. Empty: all.
  std::string hca;
  int gid_index = -1;     ///< of RoCE ports; -1: RoCE v2 over IPv4 preferred, chosen by query
  int traffic_class = 0;  ///< of the packets, [0, 255]
  int service_level = 0;  ///< InfiniBand's, or the RoCE priority; [0, 15]
  int timeout = 16;       ///< of an acknowledgement: 4.096 µs · 2^timeout; [1, 31]
  int retry = 6;          ///< repetitions after a timeout; [0, 7]. 7 is for ever on Soft-RoCE
  int queue_pairs = 1;    ///< per pair of adapters; [1, 4]
  int max_rails = 4;      ///< adapters that one link uses side by side; [1, 8]

  /// Whether they name adapters or a GID to use, rather than exclude some or leave it open.
  [[nodiscard]] bool name_some() const;
};

/// The adapters and ports that RdmaSettings::hca admits.
class HcaList {
 public:
  /// Throws InputError naming what is malformed.
  explicit HcaList(std::string_view text);

  [[nodiscard]] bool admits(std::string_view device, int port) const;
  [[nodiscard]] bool empty() const { return entries_.empty(); }

 private:
  struct Entry {
    std::string name;
    std::optional<int> port;
  };
  bool exclude_ = false;
  bool exact_ = false;
  std::vector<Entry> entries_;
};

}  // namespace chorus
