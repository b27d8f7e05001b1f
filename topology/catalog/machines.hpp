// Figures of the machines in the catalog: data only, each with its source.
#pragma once

#include <span>
#include <string_view>

namespace chorus {

/// `count` cables between GPUs a and b.
struct Cable {
  int a;
  int b;
  int count;
};

/// NICs of a box, dealt to its GPUs in order: GPUs [i·gpus_per_nic, (i+1)·gpus_per_nic) use NIC i.
struct NicFacts {
  int gpus_per_nic = 0;
  double gb_s = 0;
  double path_alpha_us = 0;  ///< GPU to GPU of another box, through two NICs and the network
  std::string_view type = {};
  std::string_view detail = {};
};

/// A box of GPUs joined by a switch or by cables.
struct MachineFacts {
  std::string_view name;
  std::string_view summary;
  std::string_view gpu;  ///< model, for people
  int gpus = 0;
  int gpus_per_socket = 0;        ///< 0: sockets not modelled
  std::string_view part = "cpu";  ///< what a socket is called; anything else is a host of its own
  std::string_view switch_model = {};  ///< empty: cables
  std::span<const Cable> cables = {};  ///< empty and no switch: one cable between any two
  double gb_s = 0;                     ///< per cable, or per GPU into the switch; each direction
  double alpha_us = 0;                 ///< GPU to GPU, through the switch if there is one
  std::string_view type = {};
  double pcie_gb_s = 0;    ///< GPU to its socket; 0: not modelled (never the faster way)
  double socket_gb_s = 0;  ///< between sockets, if PCIe is modelled
  NicFacts nic = {};
};

[[nodiscard]] std::span<const MachineFacts> machines();

}  // namespace chorus
