// When an execution tells a link where messages may land, never where something is still needed;
// and when it lets a message go that waits for nothing.
#include "runtime/executors/execution.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <numeric>

namespace chorus::testing {
namespace {

constexpr std::size_t kMessage = 1024;
constexpr std::uint32_t kTag = 9;

/// Takes every put, releases them when told, and notes what is expected of it.
class NotingLink final : public Link, public PostedReceives {
 public:
  bool try_put(std::span<const std::byte>, std::size_t, ChannelId channel, std::uint32_t) override {
    ++made_[channel];
    return true;
  }
  std::uint64_t released(ChannelId channel) const override {
    return release ? made_.at(channel) : 0;
  }
  std::uint64_t arrivals(ChannelId) override { return 0; }
  std::uint32_t tag(ChannelId, std::uint64_t) const override { return kTag; }
  bool progress() override { return true; }
  std::span<std::byte> region() override { return region_; }
  std::span<std::byte> peer_region() override { return {}; }
  std::string_view transport() const override { return "noting"; }
  PostedReceives* posted_receives() override { return this; }

  void expect(ChannelId, std::uint64_t index, const PostedReceive& posted) override {
    expected[index] = posted;
  }
  bool in_place(ChannelId, std::uint64_t) const override { return false; }
  void withdraw() override {}

  [[nodiscard]] std::uint64_t puts() const {
    return std::accumulate(made_.begin(), made_.end(), std::uint64_t{0},
                           [](std::uint64_t sum, const auto& made) { return sum + made.second; });
  }

  bool release = false;
  std::map<std::uint64_t, PostedReceive> expected;  // by arrival

 private:
  std::map<ChannelId, std::uint64_t> made_;
  std::array<std::byte, 4 * kMessage> region_ = {};
};

struct OnePeer final : Execution::Ports {
  explicit OnePeer(Link& link) {
    outgoing.link = incoming.link = &link;
    incoming.posted_receives = link.posted_receives();
  }
  OutPort& out(Rank, int) override { return outgoing; }
  InPort& in(Rank, int) override { return incoming; }
  OutPort outgoing;
  InPort incoming;
};

/// Rank 0 of 2 in a broadcast of one chunk.
Program program_of(std::vector<Lane> lanes) {
  return {.name = "by hand",
          .collective = {.kind = CollectiveKind::broadcast, .root = 1},
          .world_size = 2,
          .rank = 0,
          .num_chunks = 1,
          .num_channels = 1,
          .incoming = {{.peer = 1}},
          .outgoing = {{.peer = 1}},
          .lanes = std::move(lanes)};
}

constexpr LocalRange kPlace{.buffer = Buffer::output, .index = 0};
const Instruction receiving{
    .sources = {{.incoming = 0, .local = {}}}, .destination = kPlace, .sends = {}, .after = {}};
const Instruction sending{
    .sources = {{.incoming = -1, .local = kPlace}}, .destination = {}, .sends = {0}, .after = {}};

class PostedReceiveTest : public ::testing::Test {
 protected:
  void begin(std::vector<Lane> lanes, std::size_t tiles) {
    memory_.resize(tiles * kMessage);
    execution_.reset(
        make_routine(program_of(std::move(lanes)), {}, 0),
        {.input = memory_.data(), .output = memory_.data(), .count = memory_.size(), .tag = kTag},
        {.slots = 4, .slot_bytes = kMessage}, ports_);
    execution_.begin();
  }

  NotingLink link_;
  OnePeer ports_{link_};
  Execution execution_;
  std::vector<std::byte> memory_;
};

TEST_F(PostedReceiveTest, MessagesAreExpectedAsFarAheadAsSlotsGo) {
  begin({{.instructions = {receiving}}}, 6);
  ASSERT_EQ(link_.expected.size(), 4u);
  for (const auto& [index, posted] : link_.expected) {
    EXPECT_EQ(posted.memory.data(), memory_.data() + index * kMessage);
    EXPECT_EQ(posted.memory.size(), kMessage);
    EXPECT_EQ(posted.offset, index * kMessage);
    EXPECT_EQ(posted.tag, kTag);
  }
}

TEST_F(PostedReceiveTest, WhatAnotherLaneStillSendsIsNotReceivedUpon) {
  Instruction receive = receiving;
  receive.after = {{.lane = 0, .instruction = 0}};
  begin({{.instructions = {sending}}, {.instructions = {receive}}}, 1);
  EXPECT_TRUE(link_.expected.empty());
  EXPECT_TRUE(execution_.step());  // put, and not yet released
  EXPECT_TRUE(link_.expected.empty());
  link_.release = true;
  static_cast<void>(execution_.step());
  EXPECT_EQ(link_.expected.size(), 1u);
}

TEST_F(PostedReceiveTest, WhatTheLaneItselfStillSendsIsNotReceivedUpon) {
  begin({{.instructions = {sending, receiving}}}, 1);
  EXPECT_TRUE(execution_.step());
  EXPECT_TRUE(link_.expected.empty());
  link_.release = true;
  static_cast<void>(execution_.step());
  EXPECT_EQ(link_.expected.size(), 1u);
}

// What it adds and sends on lies in no one's memory; the next such message needs another place.
TEST_F(PostedReceiveTest, WhatIsForwardedDoesNotWaitUntilTheLastIsReleased) {
  const Instruction forwarding{
      .sources = {{.incoming = -1, .local = kPlace}, {.incoming = -1, .local = kPlace}},
      .destination = {},
      .sends = {0},
      .after = {}};
  begin({{.instructions = {forwarding}}}, 3);
  while (execution_.step()) {
  }
  EXPECT_EQ(link_.puts(), 3U);
  EXPECT_FALSE(execution_.finished());
  link_.release = true;
  while (execution_.step()) {
  }
  EXPECT_TRUE(execution_.finished());
}

class RunAheadTest : public ::testing::Test {
 protected:
  /// Rank 0 of 2 sends its part of chunk c at step c, and has the sum back at step c + 1. Nothing
  /// ever arrives. Returns how many parts have left.
  std::uint64_t parts_sent(CollectiveKind kind, int chunks, int run_ahead, std::size_t tiles = 1) {
    Lane parts, sums;
    for (ChunkId c = 0; c < chunks; ++c) {
      parts.instructions.push_back(
          {.chunk = c,
           .sources = {{.incoming = -1, .local = {.buffer = Buffer::input, .index = c}}},
           .destination = {},
           .sends = {0},
           .after = {},
           .step = c});
      sums.instructions.push_back({.chunk = c,
                                   .sources = {{.incoming = 0, .local = {}}},
                                   .destination = LocalRange{.buffer = Buffer::output, .index = c},
                                   .sends = {},
                                   .after = {},
                                   .completes = true,
                                   .step = c + 1});
    }
    const Program program{.name = "by hand",
                          .collective = {.kind = kind, .root = 0},
                          .world_size = 2,
                          .rank = 0,
                          .num_chunks = chunks,
                          .num_channels = 1,
                          .incoming = {{.peer = 1}},
                          .outgoing = {{.peer = 1}},
                          .lanes = {parts, sums}};
    memory_.resize(static_cast<std::size_t>(chunks) * tiles * kMessage);
    execution_.reset(make_routine(program, {}, 0),
                     {.input = memory_.data(),
                      .output = memory_.data(),
                      .count = memory_.size(),
                      .tag = kTag,
                      .run_ahead = run_ahead},
                     {.slots = 64, .slot_bytes = kMessage}, ports_);
    execution_.begin();
    while (execution_.step()) {
    }
    return link_.puts();
  }

  NotingLink link_;
  OnePeer ports_{link_};
  Execution execution_;
  std::vector<std::byte> memory_;
};

TEST_F(RunAheadTest, PartsOfAnAllReduceWaitForTheSums) {
  EXPECT_EQ(parts_sent(CollectiveKind::all_reduce, 8, 1), 3U);
}

TEST_F(RunAheadTest, AsManyStepsAsTheCallAllows) {
  EXPECT_EQ(parts_sent(CollectiveKind::all_reduce, 8, 4), 6U);
}

TEST_F(RunAheadTest, AllAtOnceWhereNothingIsSaid) {
  EXPECT_EQ(parts_sent(CollectiveKind::all_reduce, 8, Work{}.run_ahead), 8U);
}

TEST_F(RunAheadTest, WhatIsNoPartOfASumLeavesAtOnce) {
  EXPECT_EQ(parts_sent(CollectiveKind::broadcast, 8, 1), 8U);
}

// Each tile runs the program anew: its first steps wait for nothing of the tile before.
TEST_F(RunAheadTest, TilesFollowEachOther) {
  EXPECT_EQ(parts_sent(CollectiveKind::all_reduce, 2, 1, 4), 8U);
}

}  // namespace
}  // namespace chorus::testing
