#include "topology/catalog/machines.hpp"

#include <array>

namespace chorus {
namespace {

// NVLinks of DGX-1 V100, p3.16xlarge, p3dn and NDv2, GPUs in the order of nvidia-smi: six per GPU.
constexpr Cable kDgx1[] = {
    {0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1}, {1, 5, 2}, {2, 3, 2},
    {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1}, {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2},
};

// Infinity Fabric of an OLCF Frontier node: four MI250X of two dies each (topo_8p1h of RCCL; the
// OLCF user guide gives 200 GB/s within a package and 50 to 100 between packages).
constexpr Cable kMi250x[] = {
    {0, 1, 4}, {0, 4, 2}, {0, 6, 1}, {1, 3, 1}, {1, 7, 1}, {2, 3, 4},
    {2, 4, 1}, {2, 6, 2}, {3, 5, 1}, {4, 5, 4}, {5, 7, 1}, {6, 7, 4},
};

// Sixteen dies of eight MI250 (ForestColl, TE-CCL).
constexpr Cable kMi250[] = {
    {0, 1, 4},   {0, 4, 2},   {0, 8, 1},   {1, 5, 1},   {1, 9, 1},   {1, 10, 1},  {2, 3, 4},
    {2, 6, 1},   {2, 9, 1},   {2, 10, 1},  {3, 7, 2},   {3, 11, 1},  {4, 5, 4},   {4, 6, 1},
    {5, 6, 1},   {5, 7, 1},   {6, 7, 4},   {8, 9, 4},   {8, 12, 2},  {9, 13, 1},  {10, 11, 4},
    {10, 14, 1}, {11, 15, 2}, {12, 13, 4}, {12, 14, 1}, {13, 14, 1}, {13, 15, 1}, {14, 15, 4},
};

// Two xGMI rings of four; everything else goes over PCIe (topo_8p_rome of RCCL).
constexpr Cable kZ52[] = {
    {0, 1, 1}, {1, 5, 1}, {3, 5, 1}, {0, 3, 1}, {2, 4, 1}, {4, 7, 1}, {6, 7, 1}, {2, 6, 1},
};

constexpr NicFacts infiniband(int gpus_per_nic, double gb_s, std::string_view detail) {
  return {gpus_per_nic, gb_s, 1.7, "infiniband", detail};
}

constexpr std::array kMachines = {
    MachineFacts{.name = "dgx1",
                 .summary = "NVIDIA DGX-1: 8 V100, cube mesh of 6 NVLinks of 25 GB/s per GPU; "
                            "cluster: 100 Gb/s InfiniBand per GPU pair",
                 .gpu = "V100",
                 .gpus = 8,
                 .gpus_per_socket = 4,
                 .cables = kDgx1,
                 .gb_s = 25,
                 .alpha_us = 0.7,
                 .type = "nvlink",
                 .nic = infiniband(2, 12.5, "EDR InfiniBand 100 Gb/s")},
    MachineFacts{.name = "ndv2",
                 .summary = "Azure NDv2: the DGX-1 mesh; cluster: one 100 Gb/s InfiniBand per box "
                            "that any GPU may use",
                 .gpu = "V100",
                 .gpus = 8,
                 .gpus_per_socket = 4,
                 .cables = kDgx1,
                 .gb_s = 25,
                 .alpha_us = 0.7,
                 .type = "nvlink",
                 .nic = infiniband(8, 12.5, "EDR InfiniBand 100 Gb/s")},
    MachineFacts{.name = "p3dn",
                 .summary = "AWS p3dn.24xlarge: the DGX-1 mesh; cluster: one 100 Gb/s EFA per box",
                 .gpu = "V100",
                 .gpus = 8,
                 .gpus_per_socket = 4,
                 .cables = kDgx1,
                 .gb_s = 25,
                 .alpha_us = 0.7,
                 .type = "nvlink",
                 .nic = {8, 12.5, 15, "ethernet", "EFA 100 Gb/s"}},
    MachineFacts{.name = "dgx2",
                 .summary = "NVIDIA DGX-2: 16 V100, 150 GB/s each into NVSwitch; cluster: 100 Gb/s "
                            "InfiniBand per GPU pair",
                 .gpu = "V100",
                 .gpus = 16,
                 .gpus_per_socket = 8,
                 .switch_model = "NVSwitch, 6 NVLinks per GPU",
                 .gb_s = 150,
                 .alpha_us = 0.7,
                 .type = "nvlink",
                 .nic = infiniband(2, 12.5, "EDR InfiniBand 100 Gb/s")},
    MachineFacts{.name = "dgx-a100",
                 .summary = "NVIDIA DGX-A100: 8 A100, 300 GB/s each into NVSwitch; cluster: 200 "
                            "Gb/s InfiniBand per GPU",
                 .gpu = "A100",
                 .gpus = 8,
                 .gpus_per_socket = 4,
                 .switch_model = "NVSwitch, 12 NVLinks per GPU",
                 .gb_s = 300,
                 .alpha_us = 0.7,
                 .type = "nvlink",
                 .nic = infiniband(1, 25, "HDR InfiniBand 200 Gb/s")},
    MachineFacts{.name = "dgx-h100",
                 .summary = "NVIDIA DGX-H100: 8 H100, 450 GB/s each into NVSwitch; cluster: 400 "
                            "Gb/s InfiniBand per GPU",
                 .gpu = "H100",
                 .gpus = 8,
                 .gpus_per_socket = 4,
                 .switch_model = "NVSwitch, 18 NVLinks per GPU",
                 .gb_s = 450,
                 .alpha_us = 0.7,
                 .type = "nvlink",
                 .nic = infiniband(1, 50, "NDR InfiniBand 400 Gb/s")},
    MachineFacts{.name = "nvl72",
                 .summary = "NVIDIA GB200 NVL72: 72 GPUs in 18 trays, 900 GB/s each into NVSwitch; "
                            "cluster: 400 Gb/s InfiniBand per GPU",
                 .gpu = "GB200",
                 .gpus = 72,
                 .gpus_per_socket = 4,
                 .part = "tray",
                 .switch_model = "9 NVSwitch trays, 18 NVLinks per GPU",
                 .gb_s = 900,
                 .alpha_us = 0.7,
                 .type = "nvlink",
                 .nic = infiniband(1, 50, "NDR InfiniBand 400 Gb/s")},
    MachineFacts{.name = "mi250x",
                 .summary = "Frontier node: 4 MI250X = 8 dies, Infinity Fabric links of 50 GB/s; "
                            "cluster: 200 Gb/s Slingshot per package",
                 .gpu = "MI250X die",
                 .gpus = 8,
                 .cables = kMi250x,
                 .gb_s = 50,
                 .alpha_us = 0.7,
                 .type = "xgmi",
                 .nic = {2, 25, 1.7, "slingshot", "Slingshot 200 Gb/s"}},
    MachineFacts{.name = "mi250",
                 .summary = "8 MI250 = 16 dies, Infinity Fabric links of 50 GB/s; cluster: 16 GB/s "
                            "InfiniBand per die",
                 .gpu = "MI250 die",
                 .gpus = 16,
                 .cables = kMi250,
                 .gb_s = 50,
                 .alpha_us = 0.7,
                 .type = "xgmi",
                 .nic = infiniband(1, 16, "InfiniBand, 16 GB/s measured by ForestColl's authors")},
    MachineFacts{.name = "mi300x",
                 .summary = "8 MI300X, full mesh of Infinity Fabric links of 64 GB/s; cluster: 400 "
                            "Gb/s per GPU",
                 .gpu = "MI300X",
                 .gpus = 8,
                 .gpus_per_socket = 4,
                 .gb_s = 64,
                 .alpha_us = 0.7,
                 .type = "xgmi",
                 .nic = infiniband(1, 50, "400 Gb/s")},
    MachineFacts{.name = "z52",
                 .summary = "Gigabyte Z52: 8 MI50, two xGMI rings of four at 46 GB/s, PCIe 4 x16 "
                            "through two sockets; cluster: one 100 Gb/s InfiniBand per box",
                 .gpu = "MI50",
                 .gpus = 8,
                 .gpus_per_socket = 4,
                 .cables = kZ52,
                 .gb_s = 46,
                 .alpha_us = 0.7,
                 .type = "xgmi",
                 .pcie_gb_s = 24,
                 .socket_gb_s = 16,
                 .nic = infiniband(8, 12.5, "EDR InfiniBand 100 Gb/s")},
};

}  // namespace

std::span<const MachineFacts> machines() { return kMachines; }

}  // namespace chorus
