#include "formats/sketch_json.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <utility>
#include <vector>

#include "chorus/error.hpp"
#include "model/json/reader.hpp"

namespace chorus::formats {
namespace {

constexpr int kMostSketchRanks = 1 << 14;
constexpr int kMostSketchChunks = 1 << 12;
constexpr std::size_t kMostSketchMembers = 4096;  // senders are members
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;
constexpr std::array<std::string_view, 3> kUses{"any", "fewest", "most"};

std::vector<int> ranks(const json::Node& list) {
  std::vector<int> result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    result.push_back(list.item(i).integer(0, kMostSketchRanks - 1));
  }
  return result;
}

std::pair<int, int> pair(const json::Node& list, int low, std::string_view what) {
  if (list.size() != 2) list.fail(fmt::format("{} items where {} is expected", list.size(), what));
  return {list.item(0).integer(low, kMostSketchRanks), list.item(1).integer(low, kMostSketchRanks)};
}

/// {"1": [0, 2], …}
std::map<int, std::vector<int>> by_rank(const json::Node& object) {
  std::map<int, std::vector<int>> result;
  for (const std::string& name : object.names()) {
    int rank = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), rank);
    const bool whole = error == std::errc() && end == name.data() + name.size();
    if (!whole || rank < 0 || rank >= kMostSketchRanks || std::to_string(rank) != name) {
      object.member(name).fail("the name of this member is to be a local rank");
    }
    result[rank] = ranks(object.member(name));
    if (result[rank].empty())
      object.member(name).fail("no rank is named: name one, or leave it out");
  }
  return result;
}

std::vector<Sketch::Link> links(const json::Node& list) {
  std::vector<Sketch::Link> result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto [src, dst] = pair(list.item(i), 0, "[source, destination]");
    if (src == dst) list.item(i).fail("links a rank with itself");
    result.push_back({src, dst});
  }
  return result;
}

std::vector<Sketch::Offset> offsets(const json::Node& list) {
  std::vector<Sketch::Offset> result;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto [offset, group] = pair(list.item(i), 1, "[offset, group size]");
    result.push_back({offset, group});
  }
  return result;
}

Sketch own(const json::Node& root) {
  json::expect_format(root, "chorus-sketch", 1);
  root.expect_members({"format", "version"},
                      {"name", "hosts", "allowed", "forbidden", "switches", "between_hosts",
                       "sends_for", "relays", "symmetry", "chunks_per_block", "size_bytes"});
  Sketch sketch;
  if (root.has("name")) sketch.name = root.member("name").text();
  if (root.has("hosts")) sketch.hosts = root.member("hosts").integer(1, kMostSketchRanks);
  if (root.has("allowed")) sketch.allowed = links(root.member("allowed"));
  if (root.has("forbidden")) sketch.forbidden = links(root.member("forbidden"));
  if (root.has("switches")) {
    const json::Node switches = root.member("switches");
    for (std::size_t i = 0; i < switches.size(); ++i) {
      const json::Node one = switches.item(i);
      one.expect_members({"ranks", "use"});
      const std::string& use = one.member("use").text();
      const auto found = std::find(kUses.begin(), kUses.end(), use);
      if (found == kUses.end()) one.member("use").fail("uses are any, fewest and most");
      sketch.switches.push_back(
          {ranks(one.member("ranks")), static_cast<SwitchUse>(found - kUses.begin())});
    }
  }
  if (root.has("between_hosts")) {
    const json::Node between = root.member("between_hosts");
    if (!between.is_text()) {
      sketch.between = HostLinks::listed;
      sketch.senders = by_rank(between);
    } else if (between.text() == "direct") {
      sketch.between = HostLinks::direct;
    } else if (between.text() != "all") {
      between.fail("is to be \"all\", \"direct\", or an object: by sender the receivers");
    }
  }
  if (root.has("sends_for")) sketch.sends_for = by_rank(root.member("sends_for"));
  if (root.has("relays")) sketch.relays = ranks(root.member("relays"));
  if (root.has("symmetry")) sketch.symmetry = offsets(root.member("symmetry"));
  if (root.has("chunks_per_block")) {
    sketch.chunks_per_block = root.member("chunks_per_block").integer(1, kMostSketchChunks);
  }
  if (root.has("size_bytes")) sketch.size_bytes = root.member("size_bytes").whole(1, kMostBytes);
  return sketch;
}

void read_inside(const json::Node& inside, Sketch& sketch) {
  inside.expect_members({"strategy"}, {"switches", "switch_hyperedge_strategy"});
  const std::string& strategy = inside.member("strategy").text();
  if (strategy == "none") return;
  if (strategy == "minmax" || strategy == "maxmin") {
    sketch.ignored.push_back(
        fmt::format("intranode_sketch/strategy \"{}\": links are always loaded evenly", strategy));
    return;
  }
  if (strategy != "switch") {
    inside.member("strategy").fail("strategies are none, switch, minmax and maxmin");
  }
  const json::Node switches = inside.member("switches");
  const json::Node uses = inside.member("switch_hyperedge_strategy");
  if (switches.size() != uses.size()) {
    uses.fail(fmt::format("{} items for {} switches", uses.size(), switches.size()));
  }
  for (std::size_t i = 0; i < switches.size(); ++i) {
    const std::string& use = uses.item(i).text();
    if (use != "uc-min" && use != "uc-max") uses.item(i).fail("is to be uc-min or uc-max");
    sketch.switches.push_back(
        {ranks(switches.item(i)), use == "uc-min" ? SwitchUse::fewest : SwitchUse::most});
  }
}

void read_between(const json::Node& between, Sketch& sketch) {
  between.expect_members({"strategy", "internode_conn"},
                         {"gpus_to_sender_rev_map", "enforce_ordering"});
  if (between.member("strategy").text() != "relay") {
    between.member("strategy").fail("the only strategy between hosts is relay");
  }
  const json::Node pairs = between.member("internode_conn");
  if (!pairs.is_text()) {
    sketch.between = HostLinks::listed;
    sketch.senders = by_rank(pairs);
  } else if (pairs.text() == "direct-map") {
    sketch.between = HostLinks::direct;
  } else if (pairs.text() != "fully-connected") {
    pairs.fail(
        "is to be \"direct-map\", \"fully-connected\", or an object: by sender the receivers");
  }
  if (between.has("gpus_to_sender_rev_map")) {
    sketch.sends_for = by_rank(between.member("gpus_to_sender_rev_map"));
  }
  if (between.has("enforce_ordering") && between.member("enforce_ordering").truth()) {
    sketch.ignored.emplace_back(
        "internode_sketch/enforce_ordering: the order on a link is found, not given");
  }
}

Sketch tacclish(const json::Node& root) {
  root.expect_members({"nnodes", "intranode_sketch", "symmetry_offsets", "hyperparameters"},
                      {"internode_sketch"});
  Sketch sketch;
  sketch.name = "TACCL's";
  sketch.hosts = root.member("nnodes").integer(1, kMostSketchRanks);
  read_inside(root.member("intranode_sketch"), sketch);
  if (root.has("internode_sketch")) {
    read_between(root.member("internode_sketch"), sketch);
  } else if (sketch.hosts > 1) {
    root.fail("'internode_sketch' is missing: more than one node needs it");
  }
  sketch.symmetry = offsets(root.member("symmetry_offsets"));
  const json::Node parameters = root.member("hyperparameters");
  parameters.expect_members({"input_chunkup"}, {"heuristic"});
  sketch.chunks_per_block = parameters.member("input_chunkup").integer(1, kMostSketchChunks);
  if (parameters.has("heuristic")) {
    sketch.ignored.emplace_back(
        "hyperparameters/heuristic: what has the longest way before it goes first");
  }
  return sketch;
}

std::string text_of(const std::map<int, std::vector<int>>& map) {
  std::string text;
  for (const auto& [rank, others] : map) {
    text += fmt::format("{}\"{}\": [{}]", text.empty() ? "" : ", ", rank, fmt::join(others, ", "));
  }
  return "{" + text + "}";
}

template <class Pairs, class First, class Second>
std::string text_of(const Pairs& pairs, First first, Second second) {
  std::string text;
  for (const auto& one : pairs) {
    text += fmt::format("{}[{}, {}]", text.empty() ? "" : ", ", one.*first, one.*second);
  }
  return "[" + text + "]";
}

}  // namespace

Sketch sketch_from_json(std::string_view text, std::string_view where) {
  const json::Value value = json::parse(text, where, kMostSketchMembers);
  const json::Node root(value, where);
  if (root.has("nnodes") && !root.has("format")) return tacclish(root);
  return own(root);
}

std::string to_json(const Sketch& sketch) {
  std::string text = "{\n \"format\": \"chorus-sketch\",\n \"version\": 1";
  const auto add = [&](std::string_view name, const std::string& value) {
    text += fmt::format(",\n \"{}\": {}", name, value);
  };
  if (!sketch.name.empty()) add("name", json::quote(sketch.name));
  if (sketch.hosts > 0) add("hosts", std::to_string(sketch.hosts));
  if (!sketch.allowed.empty()) {
    add("allowed", text_of(sketch.allowed, &Sketch::Link::src, &Sketch::Link::dst));
  }
  if (!sketch.forbidden.empty()) {
    add("forbidden", text_of(sketch.forbidden, &Sketch::Link::src, &Sketch::Link::dst));
  }
  if (!sketch.switches.empty()) {
    std::string switches;
    for (const Sketch::Switch& one : sketch.switches) {
      switches +=
          fmt::format("{}{{\"ranks\": [{}], \"use\": \"{}\"}}", switches.empty() ? "" : ", ",
                      fmt::join(one.ranks, ", "), kUses[static_cast<std::size_t>(one.use)]);
    }
    add("switches", "[" + switches + "]");
  }
  if (sketch.between == HostLinks::listed) {
    add("between_hosts", text_of(sketch.senders));
  } else {
    add("between_hosts", sketch.between == HostLinks::direct ? "\"direct\"" : "\"all\"");
  }
  if (!sketch.sends_for.empty()) add("sends_for", text_of(sketch.sends_for));
  if (sketch.relays) add("relays", fmt::format("[{}]", fmt::join(*sketch.relays, ", ")));
  if (!sketch.symmetry.empty()) {
    add("symmetry", text_of(sketch.symmetry, &Sketch::Offset::offset, &Sketch::Offset::group));
  }
  add("chunks_per_block", std::to_string(sketch.chunks_per_block));
  if (sketch.size_bytes) add("size_bytes", std::to_string(*sketch.size_bytes));
  return text + "\n}\n";
}

}  // namespace chorus::formats
