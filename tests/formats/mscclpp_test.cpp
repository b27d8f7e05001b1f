// MSCCL++ plans: nothing here can load one, so a small machine that knows the ops runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "cases.hpp"
#include "chorus/error.hpp"
#include "formats/mscclpp_plan.hpp"

namespace chorus::formats {
namespace {

using nlohmann::json;

/// Runs a plan on contributions: a place holds its chunk and how often each rank's share is in it.
class Machine {
 public:
  Machine(const json& plan, const Schedule& schedule)
      : gpus_(plan.at("gpus")), schedule_(schedule) {
    const int n = static_cast<int>(gpus_.size());
    for (Rank rank = 0; rank < n; ++rank) {
      const json& gpu = gpus_[rank];
      EXPECT_EQ(gpu.at("id"), rank);
      auto& memory = memory_.emplace_back();
      for (const char* buffer : {"i", "o", "s"}) {
        const std::map<std::string, const char*> sizes{
            {"i", "input_chunks"}, {"o", "output_chunks"}, {"s", "scratch_chunks"}};
        memory[buffer].resize(gpu.at(sizes.at(buffer)).get<int>());
      }
      for (std::size_t i = 0; i < memory["i"].size(); ++i) {
        Value value{.chunk = input_chunk(schedule, static_cast<int>(i), rank),
                    .counts = std::vector<int>(n)};
        value.counts[rank] = 1;
        memory["i"][i] = value;
      }
      for (const json& semaphore : gpu.at("semaphores")) {
        semaphores_[rank].push_back(semaphore.at("init_value"));
      }
      channels_[rank] = ends(rank);
      signals_[rank].resize(channels_[rank].size());
      position_.emplace_back(gpu.at("threadblocks").size());
    }
  }

  /// Why it did not end, or nothing.
  std::optional<std::string> run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Rank rank = 0; rank < static_cast<Rank>(gpus_.size()); ++rank) {
        const json& blocks = gpus_[rank].at("threadblocks");
        for (std::size_t b = 0; b < blocks.size(); ++b) {
          EXPECT_EQ(blocks[b].at("id"), b);
          const json& ops = blocks[b].at("ops");
          while (position_[rank][b] < ops.size() &&
                 execute(rank, blocks[b], ops[position_[rank][b]])) {
            ++position_[rank][b];
            moved = true;
          }
        }
      }
    }
    for (std::size_t rank = 0; rank < gpus_.size(); ++rank) {
      for (std::size_t b = 0; b < position_[rank].size(); ++b) {
        const json& ops = gpus_[rank].at("threadblocks")[b].at("ops");
        if (position_[rank][b] < ops.size()) return fmt::format("rank {} block {} hangs", rank, b);
      }
      for (const int left : semaphores_[static_cast<Rank>(rank)]) {
        if (left != 0) return "a semaphore is left raised for the next run";
      }
      for (const int left : signals_[static_cast<Rank>(rank)]) {
        if (left != 0) return "a signal is left for the next run";
      }
    }
    return std::nullopt;
  }

  void expect_promise() {
    const bool sums = is_combining(schedule_.collective.kind);
    for (std::size_t r = 0; r < gpus_.size(); ++r) {
      const auto& output = memory_[r]["o"];
      for (std::size_t i = 0; i < output.size(); ++i) {
        ASSERT_TRUE(output[i]) << "rank " << r << " output " << i;
        const ChunkId chunk = output_chunk(schedule_, static_cast<int>(i), static_cast<Rank>(r));
        EXPECT_EQ(output[i]->chunk, chunk);
        if (!sums) continue;
        for (const int count : output[i]->counts) EXPECT_EQ(count, 1);
      }
    }
  }

 private:
  struct Value {
    ChunkId chunk = 0;
    std::vector<int> counts;
  };
  using Place = std::optional<Value>;
  struct ChannelEnd {
    Rank peer = 0;
    int far = 0;  // index among the peer's channels
  };

  /// The k-th channel of a to b is the k-th of b to a.
  std::vector<ChannelEnd> ends(Rank rank) const {
    const auto peers = [&](Rank of) {
      std::vector<Rank> result;
      for (const json& list : gpus_[of].at("channels")) {
        EXPECT_EQ(list.at("channel_type"), "memory");
        for (const Rank peer : list.at("connected_to")) result.push_back(peer);
      }
      return result;
    };
    std::vector<ChannelEnd> result;
    std::map<Rank, int> nth;
    for (const Rank peer : peers(rank)) {
      int skip = nth[peer]++;
      const std::vector<Rank> back = peers(peer);
      for (std::size_t far = 0; far < back.size(); ++far) {
        if (back[far] == rank && skip-- == 0) result.push_back({peer, static_cast<int>(far)});
      }
    }
    return result;
  }

  bool execute(Rank rank, const json& block, const json& op) {
    const std::string name = op.at("name");
    if (name == "nop") return true;
    if (name == "signal" || name == "wait") {
      const int channel =
          block.at("channels").at(0).at("channel_ids").at(op.at("channel_ids").at(0).get<int>());
      if (name == "signal") {
        const ChannelEnd& end = channels_.at(rank).at(channel);
        ++signals_.at(end.peer).at(end.far);
        return true;
      }
      int& raised = signals_.at(rank).at(channel);
      if (raised == 0) return false;
      --raised;
      return true;
    }
    if (name == "sem_acquire" || name == "sem_release") {
      int& semaphore = semaphores_.at(rank).at(op.at("semaphore_ids").at(0).get<int>());
      if (name == "sem_release") {
        ++semaphore;
        return true;
      }
      if (semaphore == 0) return false;
      --semaphore;
      return true;
    }
    move(rank, block, op, name);
    return true;
  }

  void move(Rank rank, const json& block, const json& op, const std::string& name) {
    ASSERT_TRUE(name == "put" || name == "copy" || name == "re") << name;
    const json& sources = op.at("src_buff");
    ASSERT_EQ(sources.size(), name == "re" ? 2U : 1U);
    const json& to = op.at("dst_buff").at(0);
    Rank owner = rank;
    std::string buffer;
    if (name == "put") {
      ASSERT_EQ(op.at("channel_type"), "memory");
      const int id = block.at("remote_buffer_refs")
                         .at(0)
                         .at("remote_buffer_ids")
                         .at(to.at("buffer_id").get<int>());
      const json& remote = gpus_[rank].at("remote_buffers").at(id);
      owner = remote.at("rank");
      buffer = remote.at("type");
    } else {
      buffer = to.at("type");
    }
    for (int i = 0; i < to.at("size").get<int>(); ++i) {
      Place result;
      for (const json& from : sources) {
        ASSERT_EQ(from.at("size"), to.at("size"));
        const Place value = memory_[rank].at(from.at("type")).at(from.at("index").get<int>() + i);
        ASSERT_TRUE(value) << "read before it is written";
        if (!result) {
          result = value;
          continue;
        }
        ASSERT_EQ(result->chunk, value->chunk);
        for (std::size_t r = 0; r < value->counts.size(); ++r) {
          result->counts[r] += value->counts[r];
        }
      }
      memory_[owner].at(buffer).at(to.at("index").get<int>() + i) = result;
    }
  }

  const json& gpus_;
  const Schedule& schedule_;
  std::vector<std::map<std::string, std::vector<Place>>> memory_;
  std::map<Rank, std::vector<int>> semaphores_;
  std::map<Rank, std::vector<ChannelEnd>> channels_;
  std::map<Rank, std::vector<int>> signals_;
  std::vector<std::vector<std::size_t>> position_;
};

TEST(Mscclpp, EveryPlanKeepsItsPromiseAndLeavesNothingBehind) {
  int plans = 0;
  for (int n = 2; n <= 8; ++n) {
    for_each_schedule(n, all_hierarchies(n),
                      [&](const Schedule& schedule, const std::string& name) {
                        const CollectiveKind kind = schedule.collective.kind;
                        if (is_rooted(kind) || kind == CollectiveKind::barrier) return;
                        SCOPED_TRACE(name);
                        const json plan = json::parse(to_mscclpp_plan(schedule));
                        EXPECT_EQ(plan.at("inplace"), false);
                        Machine machine(plan, schedule);
                        ASSERT_EQ(machine.run(), std::nullopt);
                        machine.expect_promise();
                        ++plans;
                      });
  }
  EXPECT_GT(plans, 100);
}

TEST(Mscclpp, SaysWhatItCannotWrite) {
  const Schedule broadcast =
      algorithm("binomial_tree")
          .make({.kind = CollectiveKind::broadcast, .world_size = 4, .levels = {}});
  try {
    (void)to_mscclpp_plan(broadcast);
    FAIL() << "a broadcast was written";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("is a broadcast, and an MSCCL++ plan needs"));
  }
}

}  // namespace
}  // namespace chorus::formats
