#include "formats/sketch_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "chorus/error.hpp"
#include "model/bounds/bounds.hpp"
#include "model/json/json.hpp"
#include "synth/network.hpp"

namespace chorus::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

template <class Read>
std::string refusal(const Read& read) {
  try {
    (void)read();
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal_of_sketch(const std::string& text) {
  return refusal([&] { return sketch_from_json(text, "s.json"); });
}

std::string refusal_of_topology(const std::string& text, int hosts = 1) {
  return refusal([&] { return topology_from_taccl_json(text, "t.json", hosts); });
}

/// A copy in which `what`, which is there, is replaced.
std::string with(std::string text, const std::string& what, const std::string& by) {
  const std::size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  return text.replace(at, what.size(), by);
}

TEST(OwnSketch, ComesBackEqual) {
  Sketch sketch;
  sketch.name = "odd to even";
  sketch.hosts = 2;
  sketch.allowed = {{0, 1}, {1, 0}};
  sketch.forbidden = {{1, 0}};
  sketch.switches = {{{0, 1, 2}, SwitchUse::most}, {{3}, SwitchUse::fewest}};
  sketch.between = HostLinks::listed;
  sketch.senders = {{1, {0, 2}}};
  sketch.sends_for = {{1, {0, 1, 2}}};
  sketch.relays = {0, 1};
  sketch.symmetry = {{2, 16}, {16, 32}};
  sketch.chunks_per_block = 2;
  sketch.size_bytes = 1 << 20;
  EXPECT_EQ(sketch_from_json(to_json(sketch), "s.json"), sketch);
  sketch.between = HostLinks::direct;
  sketch.senders.clear();
  sketch.relays.reset();
  sketch.size_bytes.reset();
  EXPECT_EQ(sketch_from_json(to_json(sketch), "s.json"), sketch);
  EXPECT_EQ(sketch_from_json(to_json(Sketch{}), "s.json"), Sketch{});
}

TEST(OwnSketch, NamesTheFileAndThePathOfEachMistake) {
  const std::string head = R"({"format": "chorus-sketch", "version": 1, )";
  const auto why = [&](const std::string& rest) { return refusal_of_sketch(head + rest + "}"); };
  EXPECT_THAT(why(R"("relais": [])"), HasSubstr("s.json: /: 'relais' is unknown"));
  EXPECT_THAT(why(R"("hosts": 0)"), HasSubstr("s.json: /hosts: 0 is not in [1"));
  EXPECT_THAT(why(R"("allowed": [[0, 1], [2]])"), HasSubstr("/allowed/1: 1 items where [source"));
  EXPECT_THAT(why(R"("forbidden": [[3, 3]])"), HasSubstr("/forbidden/0: links a rank with itself"));
  EXPECT_THAT(why(R"("relays": [-1])"), HasSubstr("/relays/0: -1 is not in"));
  EXPECT_THAT(why(R"("symmetry": [[0, 16]])"), HasSubstr("/symmetry/0/0: 0 is not in"));
  EXPECT_THAT(why(R"("between_hosts": "some")"), HasSubstr("/between_hosts: is to be"));
  EXPECT_THAT(why(R"("between_hosts": {"x": [0]})"), HasSubstr("/between_hosts/x: the name"));
  EXPECT_THAT(why(R"("between_hosts": {"01": [0]})"), HasSubstr("/between_hosts/01: the name"));
  EXPECT_THAT(why(R"("sends_for": {"1": []})"), HasSubstr("/sends_for/1: no rank is named"));
  EXPECT_THAT(why(R"("switches": [{"ranks": [0], "use": "uc-min"}])"),
              HasSubstr("/switches/0/use: uses are"));
  EXPECT_THAT(why(R"("chunks_per_block": 0)"), HasSubstr("/chunks_per_block: 0 is not in"));
  EXPECT_THAT(why(R"("size_bytes": 1.5)"), HasSubstr("/size_bytes: 1.5 where a whole number"));
  EXPECT_THAT(refusal_of_sketch(R"({"format": "chorus-sketch", "version": 2})"),
              HasSubstr("/version: the file has version 2"));
  EXPECT_THAT(refusal_of_sketch("{"), HasSubstr("s.json: line 1"));
}

/// Of the shape of those TACCL ships, written anew.
const std::string kRelay = R"({
  "nnodes": 2,
  "intranode_sketch": {"strategy": "switch", "switches": [[0, 1, 2, 3]],
                       "switch_hyperedge_strategy": ["uc-min"]},
  "internode_sketch": {"strategy": "relay", "internode_conn": {"1": [0], "3": [2]},
                       "gpus_to_sender_rev_map": {"1": [0, 1], "3": [2, 3]},
                       "enforce_ordering": true},
  "symmetry_offsets": [[2, 4], [4, 8]],
  "hyperparameters": {"input_chunkup": 2, "heuristic": 4}
})";

TEST(TacclSketch, SaysWhatItsMembersSay) {
  const Sketch sketch = sketch_from_json(kRelay, "s.json");
  EXPECT_EQ(sketch.hosts, 2);
  EXPECT_EQ(sketch.switches, (std::vector<Sketch::Switch>{{{0, 1, 2, 3}, SwitchUse::fewest}}));
  EXPECT_EQ(sketch.between, HostLinks::listed);
  EXPECT_EQ(sketch.senders, (std::map<int, std::vector<int>>{{1, {0}}, {3, {2}}}));
  EXPECT_EQ(sketch.sends_for, (std::map<int, std::vector<int>>{{1, {0, 1}}, {3, {2, 3}}}));
  EXPECT_EQ(sketch.symmetry, (std::vector<Sketch::Offset>{{2, 4}, {4, 8}}));
  EXPECT_EQ(sketch.chunks_per_block, 2);
  ASSERT_EQ(sketch.ignored.size(), 2);
  EXPECT_THAT(sketch.ignored[0], HasSubstr("enforce_ordering"));
  EXPECT_THAT(sketch.ignored[1], HasSubstr("heuristic"));
}

TEST(TacclSketch, MapsByName) {
  const std::string listed = R"({"1": [0], "3": [2]})";
  EXPECT_EQ(sketch_from_json(with(kRelay, listed, R"("direct-map")"), "s").between,
            HostLinks::direct);
  EXPECT_EQ(sketch_from_json(with(kRelay, listed, R"("fully-connected")"), "s").between,
            HostLinks::all);
}

TEST(TacclSketch, NamesTheFileAndThePathOfEachMistake) {
  const auto why = [](const std::string& what, const std::string& by) {
    return refusal_of_sketch(with(kRelay, what, by));
  };
  EXPECT_THAT(why("\"switch\",", "\"hub\","), HasSubstr("/intranode_sketch/strategy: strategies"));
  EXPECT_THAT(why("[\"uc-min\"]", "[]"), HasSubstr("switch_hyperedge_strategy: 0 items for 1"));
  EXPECT_THAT(why("uc-min", "uc-mean"), HasSubstr("switch_hyperedge_strategy/0: is to be uc-min"));
  EXPECT_THAT(why("\"relay\"", "\"switch\""), HasSubstr("/internode_sketch/strategy: the only"));
  EXPECT_THAT(why("{\"1\": [0], \"3\": [2]}", "\"ring\""),
              HasSubstr("/internode_sketch/internode_conn: is to be"));
  EXPECT_THAT(why("true", "1"), HasSubstr("enforce_ordering: a number where true or false"));
  EXPECT_THAT(why("[[2, 4], [4, 8]]", "[[2, 4, 8]]"), HasSubstr("/symmetry_offsets/0: 3 items"));
  EXPECT_THAT(why("\"input_chunkup\": 2", "\"input_chunkup\": 0"),
              HasSubstr("/hyperparameters/input_chunkup: 0 is not in"));
  EXPECT_THAT(why("\"symmetry_offsets\"", "\"symmetry\""), HasSubstr("'symmetry' is unknown"));
}

const std::string kBox = R"({"name": "box", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 0.3,
  "node_betas_list": [23, 46], "node_invbws_list": [23, 46],
  "remote_invbw": 107, "remote_alpha": 2.6, "remote_beta": 105})";

TEST(TacclTopology, OfTwoBetasIsAnNdv2) {
  const Topology box = topology_from_taccl_json(kBox, "t.json");
  EXPECT_EQ(malformed(box), std::nullopt);
  EXPECT_EQ(box.world_size(), 8);
  EXPECT_EQ(box.links.size(), 32);  // 16 pairs
  double out_gb_s = 0;
  for (const Topology::Link& link : box.links) {
    EXPECT_DOUBLE_EQ(link.alpha_s, 0.3e-6);
    if (link.src == box.rank_nodes[0]) out_gb_s += 1e-9 / link.beta_s_per_byte;
  }
  // Six links of 1 MB per 46 µs; double ones count twice.
  EXPECT_NEAR(out_gb_s, 6 * 1e3 / 46, 1e-6);
}

TEST(TacclTopology, OfSeveralBoxesSharesCards) {
  const Topology two = topology_from_taccl_json(kBox, "t.json", 2);
  EXPECT_EQ(malformed(two), std::nullopt);
  EXPECT_EQ(two.world_size(), 16);
  const synth::Network network(two);
  const auto edge = network.edge(0, 9);
  ASSERT_TRUE(edge.has_value());
  EXPECT_NEAR(network.edges()[static_cast<std::size_t>(*edge)].alpha_s, 2.6e-6, 1e-12);
  // All eight GPUs behind one card of 1 MB per 105 µs.
  const Bound bound = lower_bound(two, {CollectiveKind::all_gather, 0});
  EXPECT_NEAR(bound.algbw_gb_s(), 2 * 1e3 / 105, 0.01);
}

TEST(TacclTopology, OfOneBetaIsBehindASwitch) {
  const std::string text = with(with(with(kBox, "[23, 46]", "[8]"), "[23, 46]", "[8]"),
                                "\"gpus_per_node\": 8", "\"gpus_per_node\": 16");
  const Topology box = topology_from_taccl_json(text, "t.json");
  EXPECT_EQ(malformed(box), std::nullopt);
  EXPECT_EQ(box.world_size(), 16);
  EXPECT_EQ(box.links.size(), 32);
  EXPECT_NEAR(lower_bound(box, {CollectiveKind::all_to_all, 0}).algbw_gb_s(), 125 * 16.0 / 15, 0.1);
}

const std::string kCustom = R"({"name": "pair", "gpus_per_node": 2, "alpha": 1,
  "links": [[0, 2], [1, 0]], "betas": [[0, 40], [20, 0]], "invbws": [[0, 41], [21, 0]]})";

TEST(TacclTopology, OfItsOwnLinksReadsThemByDestination) {
  const Topology pair = topology_from_taccl_json(kCustom, "t.json");
  ASSERT_EQ(pair.links.size(), 2);
  EXPECT_EQ(pair.links[0].src, pair.rank_nodes[1]);
  EXPECT_EQ(pair.links[0].dst, pair.rank_nodes[0]);
  EXPECT_DOUBLE_EQ(pair.links[0].beta_s_per_byte, 20e-12);  // two links of 40
  EXPECT_DOUBLE_EQ(pair.links[1].beta_s_per_byte, 20e-12);
}

TEST(TacclTopology, NamesTheFileAndThePathOfEachMistake) {
  const auto why = [](const std::string& what, const std::string& by, int hosts = 1) {
    return refusal_of_topology(with(kBox, what, by), hosts);
  };
  EXPECT_THAT(why("\"alpha\"", "\"alfa\""), HasSubstr("t.json: /: 'alfa' is unknown"));
  EXPECT_THAT(why("_node\": 8", "_node\": 0"), HasSubstr("/gpus_per_node: 0 is not in"));
  EXPECT_THAT(why("[23, 46]", "[23, 0]"), HasSubstr("/node_betas_list/1: is to be more than 0"));
  EXPECT_THAT(why("\"node_invbws_list\": [23, 46]", "\"node_invbws_list\": [23, 60]"),
              HasSubstr("/node_invbws_list/1: 60 is not alpha + beta = 46.3"));
  EXPECT_THAT(why("\"node_invbws_list\": [23, 46]", "\"node_invbws_list\": [23]"),
              HasSubstr("/node_invbws_list: 1 items for 2 betas"));
  EXPECT_THAT(why("_node\": 8", "_node\": 6"), HasSubstr("no box that is known"));
  EXPECT_THAT(why("\"nics_per_node\": 1", "\"nics_per_node\": 3", 2),
              HasSubstr("/nics_per_node: 8 GPUs cannot share 3 cards"));
  EXPECT_THAT(why("\"remote_invbw\": 107", "\"remote_invbw\": 130", 2),
              HasSubstr("/remote_invbw: 130 is not alpha + beta"));
  EXPECT_THAT(why("\"remote_beta\": 105", "\"remote_beta\": 0", 2), HasSubstr("/remote_beta"));
  EXPECT_THAT(refusal_of_topology(kBox, 1000), HasSubstr("1000 hosts of 8 GPUs"));
  EXPECT_THAT(refusal_of_topology(with(kCustom, "[[0, 2], [1, 0]]", "[[0, 2]]")),
              HasSubstr("/links: 1 row for 2 GPUs"));
  EXPECT_THAT(refusal_of_topology(with(kCustom, "[[0, 2], [1, 0]]", "[[1, 2], [1, 0]]")),
              HasSubstr("/links/0/0: links a GPU with itself"));
  EXPECT_THAT(refusal_of_topology(with(kCustom, "\"links\"", "\"node_betas_list\"")),
              HasSubstr("/betas: needs 'links'"));
  EXPECT_THAT(refusal_of_topology(kCustom, 2), HasSubstr("'nics_per_node' is missing"));
}

TEST(Readers, SurviveAnySingleByteBeingWrong) {
  for (const std::string& text : {kRelay, kBox, kCustom}) {
    for (std::size_t at = 0; at < text.size(); ++at) {
      for (const char byte : {'0', '-', '"', '[', '}', '\x80'}) {
        std::string bad = text;
        bad[at] = byte;
        (void)refusal_of_sketch(bad);
        (void)refusal_of_topology(bad, 2);
      }
    }
  }
}

}  // namespace
}  // namespace chorus::formats
