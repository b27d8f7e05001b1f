// A rank whose connection falls silent comes to its coordinator by another address: nothing is
// missed, nothing counts twice, and nobody but the rank itself can take its place.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control_harness.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::HasSubstr;
using wire::Type;
using wire::Writer;

/// Two ranks, of which rank 1 says what the test wants.
class Resume : public ::testing::Test {
 protected:
  Resume() {
    const std::vector<std::string> others{"127.0.0.2", "127.0.0.1", "nowhere"};
    places_ = coordinator_.listen_also(others);
    control_thread_ = std::thread([this] { control_ = Control::join(id(), 0, 2, kPatience_ms); });
    EXPECT_EQ(old_.enter(old_.hello(1, 2)).second, "welcome");
    // Before `joined`, after which a rank may read nothing for as long as it computes.
    const wire::Bytes told = next(old_, Type::places);
    wire::Reader places(told);
    EXPECT_EQ(wire::read_places(places), places_);
    EXPECT_EQ(places_.size(), 2u);
    const wire::Bytes joined = next(old_, Type::joined);
    wire::Reader reader(joined);
    reader.i32();
    session_ = reader.u64();
    control_thread_.join();
  }
  std::string id() const { return coordinator_.id(); }
  /// At the second place.
  std::string other_id() const {
    net::Id other = net::Id::parse(id());
    EXPECT_TRUE(net::Endpoint::parse(places_[1].address, places_[1].port, other.endpoint));
    return other.text();
  }
  wire::Hello again(const Raw& raw) const {
    wire::Hello hello = raw.hello(1, 2);
    hello.session = session_;
    return hello;
  }
  /// Reads up to a frame of that type.
  static wire::Bytes next(Raw& raw, Type type) {
    while (auto frame = raw.next()) {
      if (frame->first == type) return frame->second;
    }
    ADD_FAILURE() << "no frame of type " << static_cast<int>(type);
    return {};
  }
  /// Of an exchange's result: its key.
  static std::string next_result(Raw& raw) {
    const wire::Bytes frame = next(raw, Type::exchange_result);
    return wire::Reader(frame).text();
  }
  static wire::Frame gives(const std::string& key) {
    return Writer(Type::exchange)
        .text(key)
        .ranks(all_ranks(2))
        .blob(bytes_of("raw"))
        .text("")
        .share();
  }
  /// What rank 1 knows, and has under way.
  static void bring(Raw& raw, const std::vector<wire::Frame>& under_way) {
    wire::Follow known;
    known.loss = wire::Loss::silent;
    raw.send(wire::follow_frame(known));
    for (const wire::Frame& frame : under_way) raw.send(frame);
    raw.send(Writer(Type::followed).share());
  }
  static void read_to_the_end(Raw& raw) {
    while (raw.next()) continue;
    EXPECT_TRUE(raw.ended());
  }
  std::string exchanges(const std::string& key) {
    try {
      const Table all = control_->exchange(key, all_ranks(2), bytes_of("x"), kPatience_ms);
      return text_of(all[1]);
    } catch (const Error& error) {
      return error.what();
    }
  }

  Coordinator coordinator_{2, "", 0, Secret::random()};
  std::vector<wire::Place> places_;
  std::thread control_thread_;
  std::shared_ptr<Control> control_;
  Raw old_{id()};
  std::uint64_t session_ = 0;
};

TEST_F(Resume, ComesByAnotherAddressAndMissesNothing) {
  old_.send(gives("a"));
  EXPECT_EQ(exchanges("a"), "raw");  // whose result rank 1 does not read
  Raw anew(other_id());
  EXPECT_EQ(anew.enter(again(anew)).second, "welcome");
  old_.send(gives("b"));  // too late: it is said again
  bring(anew, {gives("a"), gives("b")});
  EXPECT_EQ(next_result(anew), "a");
  EXPECT_EQ(exchanges("b"), "raw");
  EXPECT_EQ(next_result(anew), "b");
  read_to_the_end(old_);
  anew.send(gives("c"));
  EXPECT_EQ(exchanges("c"), "raw") << "the end of the old connection is no death";
  anew.send(Writer(Type::goodbye).text("").share());
}

TEST_F(Resume, IsToldAgainWhatTheSilentPathMayHaveLost) {
  control_->open_group("pair", all_ranks(2));
  const wire::Frame opens = Writer(Type::open_group).text("pair").ranks(all_ranks(2)).share();
  old_.send(opens);
  EXPECT_EQ((old_.send(gives("a")), exchanges("a")), "raw");
  control_->note("pair", 1, bytes_of("a word"));
  next(old_, Type::noted);
  Raw anew(other_id());
  EXPECT_EQ(anew.enter(again(anew)).second, "welcome");
  bring(anew, {opens});
  next(anew, Type::places);
  const wire::Bytes noted = next(anew, Type::noted);
  EXPECT_EQ(wire::Reader(noted).text(), "pair");
  anew.send(Writer(Type::goodbye).text("").share());
}

TEST_F(Resume, AnAttemptThatComesToNothingIsNoDeath) {
  for (int i = 0; i < 3; ++i) {
    Raw anew(other_id());
    EXPECT_EQ(anew.enter(again(anew)).second, "welcome");
  }
  Raw anew(other_id());
  EXPECT_EQ(anew.enter(again(anew)).second, "welcome");
  Raw meanwhile(other_id());  // the path of the last one is silent, too
  EXPECT_EQ(meanwhile.enter(again(meanwhile)).second, "welcome");
  bring(meanwhile, {gives("a")});
  EXPECT_EQ(exchanges("a"), "raw");
  read_to_the_end(anew);
  meanwhile.send(Writer(Type::goodbye).text("").share());
}

TEST_F(Resume, OneThatNeverComesAgainIsDead) {
  {
    Raw anew(other_id());
    EXPECT_EQ(anew.enter(again(anew)).second, "welcome");
  }
  control_->open_group("all", all_ranks(2));
  EXPECT_THAT(verdict_within(*control_, "all", kPatience_ms), HasSubstr("rank 1 (pid 4242"));
}

TEST_F(Resume, OneThatLiesIsDisconnectedAsAnyRank) {
  Raw anew(other_id());
  EXPECT_EQ(anew.enter(again(anew)).second, "welcome");
  anew.send(Writer(Type::follow).share());
  control_->open_group("all", all_ranks(2));
  EXPECT_THAT(verdict_within(*control_, "all", kPatience_ms), HasSubstr("rank 1 (pid 4242"));
}

TEST_F(Resume, OnlyTheRankItselfMayTakeItsPlace) {
  const auto refusal = [&](auto change) {
    Raw anew(other_id());
    wire::Hello hello = again(anew);
    change(hello);
    return anew.enter(hello).second;
  };
  EXPECT_THAT(refusal([](wire::Hello& hello) { hello.identity = "somebody"; }),
              HasSubstr("two processes claim to be one rank"));
  EXPECT_THAT(refusal([](wire::Hello& hello) { ++hello.session; }),
              HasSubstr("lost the coordinator of another job"));
  EXPECT_THAT(refusal([](wire::Hello& hello) { hello.rank = 2; }),
              HasSubstr("lost the coordinator of another job"));
  EXPECT_THAT(refusal([](wire::Hello& hello) { hello.rank = 0; }),
              HasSubstr("two processes claim to be one rank"));
  old_.send(gives("a"));
  EXPECT_EQ(exchanges("a"), "raw") << "the old connection serves";
  old_.close();
  control_->open_group("all", all_ranks(2));
  EXPECT_THAT(verdict_within(*control_, "all", kPatience_ms), HasSubstr("rank 1 (pid 4242"));
  EXPECT_THAT(refusal([](wire::Hello&) {}), HasSubstr("comes too late")) << "it is dead";
}

}  // namespace
}  // namespace chorus
