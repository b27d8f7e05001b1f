// TACCL's topologies: one box, in microseconds and microseconds per megabyte.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "base/counted.hpp"
#include "formats/sketch_json.hpp"
#include "model/json/json.hpp"
#include "model/json/reader.hpp"

namespace chorus::formats {
namespace {

constexpr int kMostGpus = 512;
constexpr int kMostTacclRanks = 4096;
constexpr int kMostLinks = 1024;
constexpr double kRounding = 1.001;  // µs
constexpr double kMicro = 1e-6;
constexpr double kPerMegabyte = 1e-12;  // µs per MB, in seconds per byte

// NVLinks of an NDv2 in TACCL's numbering of its GPUs.
constexpr std::array<std::string_view, 8> kNdv2 = {"02112000", "20120100", "11020020", "12200001",
                                                   "20000211", "01002012", "00201102", "00011220"};

double beta_of(const json::Node& beta) {
  if (beta.figure() <= 0) beta.fail("is to be more than 0: microseconds per MB");
  return beta.figure() * kPerMegabyte;
}

void require_sum(const json::Node& invbw, double alpha_us, double beta_us) {
  if (std::abs(invbw.figure() - alpha_us - beta_us) <= kRounding) return;
  invbw.fail(fmt::format("{} is not alpha + beta = {}", invbw.figure(), alpha_us + beta_us));
}

class Reader {
 public:
  Reader(const json::Node& root, int hosts) : root_(root), hosts_(hosts) {
    root.expect_members({"name", "gpus_per_node", "alpha"},
                        {"nics_per_node", "node_betas_list", "node_invbws_list", "remote_alpha",
                         "remote_beta", "remote_invbw", "links", "betas", "invbws"});
    gpus_ = root.member("gpus_per_node").integer(1, kMostGpus);
    alpha_us_ = root.member("alpha").figure();
    if (hosts < 1 || hosts > kMostTacclRanks / gpus_) {
      root.fail(fmt::format("{} hosts of {} GPUs: up to {} ranks are read", hosts, gpus_,
                            kMostTacclRanks));
    }
  }

  Topology read() {
    topology_.name = root_.member("name").text();
    if (hosts_ > 1) topology_.name = fmt::format("{}*{}", hosts_, topology_.name);
    const int network = hosts_ > 1 ? node("network", NodeKind::network_switch, -1) : -1;
    for (int host = 0; host < hosts_; ++host) {
      const std::string prefix = hosts_ > 1 ? fmt::format("host{}/", host) : "";
      const int box = node(hosts_ > 1 ? fmt::format("host{}", host) : "host", NodeKind::host, -1);
      gpu_nodes_.clear();
      for (int gpu = 0; gpu < gpus_; ++gpu) {
        gpu_nodes_.push_back(node(fmt::format("{}gpu{}", prefix, gpu), NodeKind::gpu, box));
        topology_.rank_nodes.push_back(gpu_nodes_.back());
      }
      wire_box(prefix, box);
      if (hosts_ > 1) wire_cards(prefix, box, network);
    }
    return std::move(topology_);
  }

 private:
  int node(std::string name, NodeKind kind, int parent) {
    topology_.nodes.push_back({std::move(name), kind, parent, {}});
    return static_cast<int>(topology_.nodes.size()) - 1;
  }

  int link(int src, int dst, double alpha_us, double beta_s_per_byte, std::string_view type) {
    topology_.links.push_back(
        {src, dst, alpha_us * kMicro, beta_s_per_byte, std::string(type), Provenance::declared});
    return static_cast<int>(topology_.links.size()) - 1;
  }

  void wire_box(const std::string& prefix, int box) {
    if (root_.has("links")) {
      for (const char* name : {"node_betas_list", "node_invbws_list"}) {
        if (root_.has(name))
          root_.member(name).fail("is given together with 'links': give one or the other");
      }
      wire_matrix();
      return;
    }
    for (const char* name : {"betas", "invbws"}) {
      if (root_.has(name)) root_.member(name).fail("needs 'links' with it");
    }
    const json::Node betas = root_.member("node_betas_list");
    const json::Node sums = root_.member("node_invbws_list");
    if (sums.size() != betas.size()) {
      sums.fail(fmt::format("{} items for {} betas", sums.size(), betas.size()));
    }
    for (std::size_t i = 0; i < betas.size(); ++i) {
      (void)beta_of(betas.item(i));
      require_sum(sums.item(i), alpha_us_, betas.item(i).figure());
    }
    if (betas.size() == 1) {
      wire_switch(prefix, box, beta_of(betas.item(0)));
    } else if (betas.size() == 2 && gpus_ == 8) {
      wire_ndv2(betas);
    } else {
      betas.fail(
          fmt::format("{} betas and {} GPUs are no box that is known: one is that of GPUs "
                      "behind a switch, two and 8 GPUs are an NDv2; for others give links, "
                      "betas and invbws",
                      betas.size(), gpus_));
    }
  }

  void wire_switch(const std::string& prefix, int box, double beta) {
    const int middle = node(prefix + "switch", NodeKind::gpu_switch, box);
    for (const int gpu : gpu_nodes_) {
      link(gpu, middle, alpha_us_ / 2, beta, "nvlink");
      link(middle, gpu, alpha_us_ / 2, beta, "nvlink");
    }
  }

  void wire_ndv2(const json::Node& betas) {
    for (std::size_t a = 0; a < 8; ++a) {
      for (std::size_t b = 0; b < 8; ++b) {
        const char count = kNdv2[a][b];
        if (count == '0') continue;
        link(gpu_nodes_[a], gpu_nodes_[b], alpha_us_, beta_of(betas.item(count == '2' ? 0 : 1)),
             "nvlink");
      }
    }
  }

  void require_square(const json::Node& rows) const {
    const auto n = static_cast<std::size_t>(gpus_);
    if (rows.size() != n)
      rows.fail(fmt::format("{} for {}", counted(static_cast<long long>(rows.size()), "row"),
                            counted(static_cast<long long>(n), "GPU")));
    for (std::size_t i = 0; i < n; ++i) {
      const json::Node row = rows.item(i);
      if (row.size() != n)
        row.fail(fmt::format("{} for {}", counted(static_cast<long long>(row.size()), "item"),
                             counted(static_cast<long long>(n), "GPU")));
    }
  }

  void wire_matrix() {
    const json::Node links = root_.member("links");
    const json::Node betas = root_.member("betas");
    const json::Node sums = root_.member("invbws");
    require_square(links);
    require_square(betas);
    require_square(sums);
    const auto n = static_cast<std::size_t>(gpus_);
    for (std::size_t dst = 0; dst < n; ++dst) {
      const json::Node link_row = links.item(dst);
      const json::Node beta_row = betas.item(dst);
      const json::Node sum_row = sums.item(dst);
      for (std::size_t src = 0; src < n; ++src) {
        const int count = link_row.item(src).integer(0, kMostLinks);
        if (count == 0) continue;
        if (src == dst) link_row.item(src).fail("links a GPU with itself");
        const double beta = beta_of(beta_row.item(src));
        require_sum(sum_row.item(src), alpha_us_, beta_row.item(src).figure());
        link(gpu_nodes_[src], gpu_nodes_[dst], alpha_us_, beta / count, "nvlink");
      }
    }
  }

  void wire_cards(const std::string& prefix, int box, int network) {
    const json::Node cards = root_.member("nics_per_node");
    const int count = cards.integer(1, gpus_);
    if (gpus_ % count != 0) {
      cards.fail(fmt::format("{} GPUs cannot share {} cards equally", gpus_, count));
    }
    const double alpha_us = root_.member("remote_alpha").figure();
    const double beta = beta_of(root_.member("remote_beta"));
    require_sum(root_.member("remote_invbw"), alpha_us, root_.member("remote_beta").figure());
    const int users = gpus_ / count;
    for (int c = 0; c < count; ++c) {
      const std::string name = fmt::format("{}nic{}", prefix, c);
      const int card = node(name, NodeKind::nic, box);
      Topology::PortGroup out{name + " out", {}, beta, 0};
      Topology::PortGroup in{name + " in", {}, beta, 0};
      for (int user = c * users; user < (c + 1) * users; ++user) {
        const int gpu = gpu_nodes_[static_cast<std::size_t>(user)];
        out.links.push_back(link(gpu, card, alpha_us / 4, beta, "pcie"));
        in.links.push_back(link(card, gpu, alpha_us / 4, beta, "pcie"));
      }
      if (users > 1) {
        topology_.port_groups.push_back(std::move(out));
        topology_.port_groups.push_back(std::move(in));
      }
      link(card, network, alpha_us / 4, beta, "infiniband");
      link(network, card, alpha_us / 4, beta, "infiniband");
    }
  }

  const json::Node& root_;
  int hosts_;
  int gpus_ = 0;
  double alpha_us_ = 0;
  std::vector<int> gpu_nodes_;  // of the box at hand
  Topology topology_;
};

}  // namespace

bool is_taccl_topology(std::string_view text) {
  return text.find("\"gpus_per_node\"") != std::string_view::npos;
}

Topology topology_from_taccl_json(std::string_view text, std::string_view where, int hosts) {
  const json::Value value = json::parse(text, where);
  const json::Node root(value, where);
  return sound(Reader(root, hosts).read(), where);
}

}  // namespace chorus::formats
