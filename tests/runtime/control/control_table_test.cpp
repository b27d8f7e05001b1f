// What an exchange gave, as a table that the ranks of a host read where it is.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "base/index.hpp"
#include "control_harness.hpp"
#include "runtime/control/table.hpp"

namespace chorus {
namespace {

using namespace testing_control;
using ::testing::HasSubstr;
using wire::Type;
using wire::Writer;

wire::Bytes body_of(std::span<const std::string> blobs) {
  std::vector<std::span<const std::byte>> spans;
  for (const std::string& blob : blobs) spans.push_back(std::as_bytes(std::span(blob)));
  Writer writer(Type::exchange_result);
  Table::write(writer, spans);
  const wire::Bytes frame = writer.take();
  return {frame.begin() + 5, frame.end()};
}

/// Only those: a thread that has to sleep may open a descriptor to be woken by, at any time.
std::size_t open_tables() {
  std::size_t tables = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code closed_meanwhile;
    const auto target = std::filesystem::read_symlink(entry.path(), closed_meanwhile).string();
    if (target.find("chorus-table") != std::string::npos) ++tables;
  }
  return tables;
}

TEST(Table, GivesEachMemberItsBlobInAnyOrder) {
  const std::vector<std::string> blobs{"one", "", "three", std::string(70'000, 'x'), ""};
  const wire::Bytes body = body_of(blobs);
  const Table table(nullptr, body);
  ASSERT_EQ(table.size(), blobs.size());
  for (const std::size_t i : {3, 0, 4, 2, 1}) EXPECT_EQ(text_of(table[i]), blobs[i]);
  std::size_t next = 0;
  for (const auto blob : table) EXPECT_EQ(text_of(blob), blobs[next++]);
  EXPECT_EQ(next, blobs.size());

  const Table copy = [] { return Table(bytes_of("alone")); }();
  ASSERT_EQ(copy.size(), 1u);
  EXPECT_EQ(text_of(copy[0]), "alone");
}

TEST(Table, RefusesWhatIsNone) {
  const auto refused = [](const wire::Bytes& body) {
    try {
      const Table table(nullptr, body);
    } catch (const wire::Malformed&) {
      return true;
    }
    return false;
  };
  const std::vector<std::string> blobs{"one", "two"};
  const wire::Bytes sound = body_of(blobs);
  EXPECT_FALSE(refused(sound));
  for (std::size_t size = 0; size < sound.size(); ++size) {
    EXPECT_TRUE(refused({sound.begin(), sound.begin() + static_cast<std::ptrdiff_t>(size)}))
        << size;
  }
  wire::Bytes longer = sound;
  longer.push_back({});
  EXPECT_TRUE(refused(longer));
  wire::Bytes many = sound;
  many[3] = std::byte{0xff};  // their number
  EXPECT_TRUE(refused(many));
  wire::Bytes back = sound;
  back[8] = std::byte{2};  // the second ends before the first
  EXPECT_TRUE(refused(back));
}

TEST(SharedFrame, IsReadInPlaceAndIsRefusedWhereItIsNotWhatWasSaid) {
  const wire::Frame frame = Writer(Type::exchange_result).text("k").share();
  const auto shared = SharedFrame::make(frame);
  ASSERT_NE(shared, nullptr);
  const auto body = [](const wire::Frame& reference) {
    return wire::Reader(std::span(*reference).subspan(5));
  };
  const wire::Frame reference = shared->reference(7);
  const SharedFrame::Opened opened = SharedFrame::open(body(reference));
  EXPECT_EQ(opened.number, 7u);
  ASSERT_NE(opened.owner, nullptr) << opened.why_not;
  EXPECT_EQ(opened.type, Type::exchange_result);
  EXPECT_EQ(wire::Reader(opened.body).text(), "k");

  // Of the fields number, pid, descriptor, inode and size any that is not the frame's.
  for (const std::size_t field : {5 + 8, 5 + 12, 5 + 16, 5 + 24}) {
    wire::Bytes other = *reference;
    other[field] ^= std::byte{1};
    const auto wrong = SharedFrame::open(wire::Reader(std::span(other).subspan(5)));
    EXPECT_EQ(wrong.owner, nullptr) << field;
    EXPECT_NE(wrong.why_not, "") << field;
  }
}

/// Two ranks, the second of them played by the test: on this host, as it says.
class SharingTest : public ::testing::Test {
 protected:
  SharingTest() : raw_(id_) {
    std::thread other([&] { control_ = Control::join(id_, 0, 2, kPatience_ms); });
    wire::Hello hello = raw_.hello(1, 2);
    hello.identity = net::process_identity() + "0";
    EXPECT_EQ(raw_.enter(hello).second, "welcome");
    other.join();
  }
  void TearDown() override { raw_.close(); }
  /// Begins the exchange of a table that is worth sharing; what the second rank is told of it.
  wire::Bytes begin() {
    const std::vector<Rank> both = all_ranks(2);
    raw_.send(
        Writer(Type::exchange).text("k").ranks(both).blob(bytes_of("theirs")).text("").share());
    thread_ = std::thread([this, both] {
      const Table table = control_->exchange("k", both, bytes_of(large_), kPatience_ms);
      EXPECT_EQ(text_of(table[0]), large_);
      EXPECT_EQ(text_of(table[1]), "theirs");
    });
    return next(Type::shared);
  }
  wire::Bytes next(Type wanted) {
    for (;;) {
      const auto frame = raw_.next();
      if (!frame) return {};
      if (frame->first == wanted) return frame->second;
    }
  }
  void expect_table(std::span<const std::byte> body) {
    wire::Reader reader(body);
    EXPECT_EQ(reader.text(), "k");
    reader.u64();
    const Table table(nullptr, reader.rest());
    ASSERT_EQ(table.size(), 2u);
    EXPECT_EQ(text_of(table[0]), large_);
  }

  const std::string large_ = std::string(SharedFrame::kWorthBytes, 'x');
  std::string id_ = UniqueId::make(2).text;
  Raw raw_;
  std::shared_ptr<Control> control_;
  std::thread thread_;
};

TEST_F(SharingTest, ATableIsReadWhereItIsAndThenLetGo) {
  std::size_t before = 0;
  for (int round = 0; round < 2; ++round) {
    const wire::Bytes body = begin();
    {
      const auto opened = SharedFrame::open(wire::Reader(body));
      ASSERT_NE(opened.owner, nullptr) << opened.why_not;
      expect_table(opened.body);
      raw_.send(Writer(Type::shared_read).u64(opened.number).u8(1).share());
    }
    thread_.join();
    // The coordinator has heard it once it answers the next question.
    raw_.send(Writer(Type::exchange_query).text("k").share());
    next(Type::missing);
    if (round == 0) before = open_tables();  // what stays for the next exchanges is there
  }
  EXPECT_EQ(open_tables(), before);
}

TEST_F(SharingTest, WhoCannotOpenItReadsItThroughTheConnection) {
  const wire::Bytes body = begin();
  raw_.send(Writer(Type::shared_read).u64(wire::Reader(body).u64()).u8(0).share());
  expect_table(next(Type::exchange_result));
  thread_.join();
  // And is not asked to again.
  raw_.send(Writer(Type::exchange).text("k").ranks(all_ranks(2)).blob({}).text("").share());
  (void)control_->exchange("k", all_ranks(2), bytes_of(large_), kPatience_ms);
  expect_table(next(Type::exchange_result));
}

TEST_F(SharingTest, WhoHasReadWhatNobodyReferredItToIsDisconnected) {
  control_->open_group("g", all_ranks(2));
  raw_.send(Writer(Type::shared_read).u64(1).u8(1).share());
  EXPECT_THAT(
      verdict_within(*control_, "g", kPatience_ms),
      HasSubstr("was disconnected: it sent what no rank sends: it has read what it was not"));
}

}  // namespace
}  // namespace chorus
