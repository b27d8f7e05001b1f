// A judge with time in the test's hands: no sockets, no waiting.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/control/coordinator/judge.hpp"

namespace chorus {

/// A judge, the time, and what it says.
class JudgeTest : public ::testing::Test {
 protected:
  void start(int world_size, bool launcher) {
    judge_.emplace(Judge::Rules{world_size, launcher, "the coordinator's process", "pid 1 on h"});
    world_.resize(static_cast<std::size_t>(world_size));
    std::iota(world_.begin(), world_.end(), 0);
  }
  static wire::Hello hello_of(Rank rank) {
    wire::Hello hello;
    hello.rank = rank;
    hello.pid = static_cast<std::uint32_t>(100 + rank);
    hello.host = "h";
    hello.identity = fmt::format("{}", rank);
    return hello;
  }
  void enter(Rank rank) {
    EXPECT_EQ(judge_->admit(hello_of(rank), now_), std::nullopt);
    judge_->tick(now_);
  }
  void enter_all_and_open(int world_size, bool launcher) {
    start(world_size, launcher);
    for (Rank rank = 0; rank < world_size; ++rank) enter(rank);
    for (Rank rank = 0; rank < world_size; ++rank) {
      say(rank, wire::Writer(wire::Type::open_group).text("g").ranks(world_));
    }
    (void)heard();
  }
  /// Comes to this successor, with all it knows.
  void follow(Rank rank, const wire::Follow& known) {
    EXPECT_EQ(judge_->follow(hello_of(rank), now_), std::nullopt);
    judge_->tick(now_);
    say(rank, *wire::follow_frame(known));
    say(rank, wire::Writer(wire::Type::followed));
  }
  /// Comes again to the coordinator that it lost sight of; what it knows and has under way is to be
  /// said next.
  void begin_return(Rank rank) {
    wire::Hello hello = hello_of(rank);
    hello.session = 1;
    EXPECT_EQ(judge_->follow(hello, now_), std::nullopt);
    say(rank, *wire::follow_frame({}));
  }
  void say(Rank rank, std::span<const std::byte> frame) {
    judge_->received(rank, static_cast<wire::Type>(frame[4]), wire::Reader(frame.subspan(5)), now_);
    judge_->tick(now_);
  }
  void say(Rank rank, wire::Writer& message) { say(rank, message.take()); }
  void say(Rank rank, wire::Writer&& message) { say(rank, message); }
  void pass(int ms) {
    now_ += std::chrono::milliseconds(ms);
    judge_->tick(now_);
  }
  /// What was said since the last call: "to 1: death 3 pid 103 on h: its connection closed".
  std::vector<std::string> heard() {
    std::vector<std::string> all;
    for (const Judge::Order& order : judge_->take_orders()) {
      if (order.close) {
        all.push_back(fmt::format("to {}: close", order.to));
        continue;
      }
      wire::Reader reader(std::span(*order.frame).subspan(5));
      std::string text;
      switch (static_cast<wire::Type>((*order.frame)[4])) {
        case wire::Type::death: {
          const Rank rank = reader.i32();
          const std::string who = reader.text();
          text = fmt::format("death {} {}: {}", rank, who, reader.text());
          break;
        }
        case wire::Type::verdict:
          reader.text();
          text = "verdict: " + reader.text();
          break;
        case wire::Type::job_failed:
          text = "failed: " + reader.text();
          break;
        case wire::Type::noted: {
          reader.text();
          const Rank from = reader.i32();
          text = fmt::format("note of {}, {} bytes", from, reader.blob(wire::kMaxNote).size());
          break;
        }
        case wire::Type::joined:
          text = fmt::format("joined, host {}", reader.i32());
          break;
        default:
          text = fmt::format("type {}", static_cast<int>((*order.frame)[4]));
      }
      all.push_back(fmt::format("to {}: {}", order.to, text));
    }
    return all;
  }

  std::optional<Judge> judge_;
  std::vector<Rank> world_;
  Judge::Time now_{};
};

}  // namespace chorus
