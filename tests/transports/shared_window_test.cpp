// What a peer says of its memory in the shared window is believed within bounds only.
#include "transports/shm/shared_window.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "base/cores.hpp"
#include "chorus/error.hpp"
#include "chorus/memory.hpp"

namespace chorus::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kSlotBytes = 4096;

/// The shared window of two ranks of one host, both in this process, which is not told so.
class SharedWindowTest : public ::testing::Test {
 protected:
  SharedWindowTest() {
    for (Fd& file : files_) {
      file = Fd(::memfd_create("part", MFD_CLOEXEC));
      EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(SharedWindow::part_bytes(kSlotBytes))),
                0);
    }
    for (Rank rank = 0; rank < 2; ++rank) ranks_[rank] = open(rank, false);
  }

  std::shared_ptr<SharedWindow> open(Rank rank, bool same_process) {
    std::vector<SharedWindow::Peer> peers(2);
    for (std::size_t i = 0; i < 2; ++i) {
      peers[i].memory = Mapping(files_[i].get(), 0, SharedWindow::part_bytes(kSlotBytes));
      peers[i].pid = ::getpid();
      peers[i].same_process = same_process;
    }
    return std::make_unique<SharedWindow>(rank, kSlotBytes, std::move(peers));
  }

  /// What rank 0 complains of when rank 1 refers to `size_bytes` at `reference`.
  std::string complaint(const Reference& reference, std::size_t size_bytes = 64) {
    try {
      static_cast<void>(ranks_[0]->reach(1, reference, size_bytes));
      return "none";
    } catch (const LinkError& error) {
      EXPECT_THAT(error.what(), HasSubstr("rank 1 "));
      return error.what();
    }
  }

  Fd files_[2];
  std::shared_ptr<SharedWindow> ranks_[2];
};

constexpr std::uint16_t kFirstSegment = Reference::kSegment;

class SegmentTest : public SharedWindowTest {
 protected:
  ~SegmentTest() override { deallocate(memory_); }

  static constexpr std::size_t kBytes = 100'000;
  std::byte* memory_ = static_cast<std::byte*>(allocate(kBytes));
  Reference reference_ = ranks_[1]->refer(memory_, kBytes);
};

TEST_F(SegmentTest, IsTheSameMemoryOnTheOtherSide) {
  ASSERT_GE(reference_.kind, kFirstSegment);
  std::byte* there = ranks_[0]->reach(1, reference_, kBytes);
  EXPECT_NE(there, memory_);
  std::memcpy(memory_ + 777, "written here", 13);
  EXPECT_STREQ(reinterpret_cast<const char*>(there + 777), "written here");
}

TEST_F(SegmentTest, IsNotReachedBeyondItsEnds) {
  EXPECT_THAT(complaint(reference_, std::size_t{1} << 40), HasSubstr("outside its segment"));
  const Reference behind{reference_.kind, std::uint64_t{1} << 40};
  EXPECT_THAT(complaint(behind), HasSubstr("outside its segment"));
  const Reference around{reference_.kind, ~std::uint64_t{0} - 8};
  EXPECT_THAT(complaint(around), HasSubstr("outside its segment"));
}

TEST_F(SegmentTest, IsNotMappedWhereTheFileIsAnother) {
  SharedWindow::SegmentEntry& entry = ranks_[1]->own().segments[reference_.kind - kFirstSegment];
  entry.size_bytes += 4096;
  EXPECT_THAT(complaint(reference_), HasSubstr("not as large as it says"));
  entry.size_bytes -= 4096;
  entry.inode ^= 1;
  EXPECT_NE(complaint(reference_), "none");
  entry.inode ^= 1;
  entry.fd = 0x7fffffff;
  EXPECT_NE(complaint(reference_), "none");
}

TEST_F(SharedWindowTest, ReferencesToWhatThereCannotBeAreRefused) {
  EXPECT_THAT(complaint({Reference::kNone, 0}), HasSubstr("no known kind"));
  EXPECT_THAT(complaint({Reference::kStaged, 0}), HasSubstr("no known kind"));
  EXPECT_THAT(complaint({kFirstSegment, 0}), HasSubstr("a segment that it does not have"));
  EXPECT_THAT(complaint({kFirstSegment + SharedWindow::kMaxSegments, 0}),
              HasSubstr("cannot exist"));
  EXPECT_THAT(complaint({0xffff, 0}), HasSubstr("cannot exist"));
}

// An address means something only where all ranks are threads of one process.
TEST_F(SharedWindowTest, AnAddressOfAnotherProcessIsRefused) {
  int value = 0;
  EXPECT_EQ(ranks_[1]->refer(&value, sizeof value).kind, Reference::kNone);
  const Reference mine{Reference::kOwnSpace, reinterpret_cast<std::uint64_t>(&value)};
  EXPECT_THAT(complaint(mine), HasSubstr("of its own process alone"));

  const auto threads = open(0, true);
  EXPECT_EQ(threads->refer(&value, sizeof value).kind, Reference::kOwnSpace);
  EXPECT_EQ(threads->reach(1, mine, sizeof value), reinterpret_cast<std::byte*>(&value));
}

// Both sides look at the other's flag after setting their own: none touches what is withdrawn.
TEST_F(SharedWindowTest, WithdrawnMemoryIsNotAccessedAnyMore) {
  EXPECT_TRUE(ranks_[0]->begin_access());
  ranks_[0]->end_access();
  ranks_[1]->withdraw();
  EXPECT_FALSE(ranks_[0]->begin_access());
  EXPECT_EQ(ranks_[0]->own().accessing.load(), 0U);
}

TEST_F(SharedWindowTest, AdviceIsHeardOfTheCallsThatItIsFor) {
  EXPECT_FALSE(ranks_[1]->advice_of(0, 77));
  ranks_[0]->advise(77, {.by_kernel = true, .timed = false});
  ranks_[0]->advise(78, {.by_kernel = false, .timed = true});
  const auto first = ranks_[1]->advice_of(0, 77);
  const auto second = ranks_[1]->advice_of(0, 78);
  ASSERT_TRUE(first && second);
  EXPECT_TRUE(first->by_kernel && !first->timed);
  EXPECT_TRUE(!second->by_kernel && second->timed);
  EXPECT_FALSE(ranks_[1]->advice_of(1, 77)) << "it was rank 0 that advised";
}

// As many as a program has, a hash and a size each: none takes another's place, and none is taken
// for another.
TEST_F(SharedWindowTest, AdviceOfCallsInTurnStays) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> keys;
  for (int i = 0; i < 8; ++i) {
    const std::uint64_t routine = random() >> 32;
    for (std::uint64_t size = 11; size < 16; ++size) keys.push_back(routine << 8 | size);
  }
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < keys.size(); ++i) {
      ranks_[0]->advise(keys[i], {.by_kernel = i % 2 == 0, .timed = i % 3 == 0});
    }
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto advice = ranks_[1]->advice_of(0, keys[i]);
    ASSERT_TRUE(advice) << i;
    EXPECT_EQ(advice->by_kernel, i % 2 == 0);
    EXPECT_EQ(advice->timed, i % 3 == 0);
  }
}

// Each has its place, or none: it is never taken for another's.
TEST_F(SharedWindowTest, AdviceOfMoreCallsThanThereIsRoomForIsForgotten) {
  constexpr std::uint64_t kKinds = 10 * SharedWindow::kAdvisedSets * SharedWindow::kAdvisedPerSet;
  for (std::uint64_t key = 1; key <= kKinds; ++key) {
    ranks_[0]->advise(key, {.by_kernel = key % 2 == 0, .timed = false});
  }
  std::size_t heard = 0;
  for (std::uint64_t key = 1; key <= kKinds; ++key) {
    const auto advice = ranks_[1]->advice_of(0, key);
    if (!advice) continue;
    ++heard;
    EXPECT_EQ(advice->by_kernel, key % 2 == 0);
  }
  EXPECT_LE(heard, SharedWindow::kAdvisedSets * SharedWindow::kAdvisedPerSet);
  EXPECT_TRUE(ranks_[1]->advice_of(0, kKinds)) << "the last one";
}

/// Moves the calling thread to one core.
void go_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

TEST_F(SharedWindowTest, RanksThatWaitOnOneCoreKnowIt) {
  const std::vector<int> cores = usable_cores();
  std::thread([&] {
    go_to(cores.front());
    EXPECT_FALSE(ranks_[0]->shares_core()) << "rank 1 has not waited anywhere";
    EXPECT_TRUE(ranks_[1]->shares_core());
    EXPECT_TRUE(ranks_[0]->shares_core());
    if (cores.size() == 1) return;
    go_to(cores.back());
    EXPECT_FALSE(ranks_[1]->shares_core());
    go_to(cores.front());
    EXPECT_FALSE(ranks_[0]->shares_core());
  }).join();
}

TEST_F(SharedWindowTest, OneOfTheRanksThatShareACoreLeavesItAndMayComeBack) {
  const std::vector<int> cores = usable_cores();
  if (cores.size() == 1) GTEST_SKIP() << "there is one core";
  std::thread([&] {
    go_to(cores.front());
    (void)ranks_[0]->shares_core();
    EXPECT_TRUE(ranks_[1]->shares_core());
    EXPECT_FALSE(ranks_[1]->leave_core()) << "it may run nowhere else";
    EXPECT_TRUE(ranks_[0]->shares_core()) << "rank 1 is still there";
    cpu_set_t all;
    CPU_ZERO(&all);
    for (const int core : cores) CPU_SET(static_cast<unsigned>(core), &all);
    ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
    bool elsewhere = false;
    for (int i = 0; i < 10 && !elsewhere; ++i) {  // the scheduler may move it meanwhile, and back
      go_to(cores.front());
      ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
      if (!ranks_[1]->shares_core()) continue;
      EXPECT_TRUE(ranks_[1]->leave_core());
      elsewhere = ::sched_getcpu() != cores.front();
      go_to(cores.front());
      EXPECT_EQ(ranks_[0]->shares_core(), !elsewhere) << "the other stays";
      ASSERT_EQ(::sched_setaffinity(0, sizeof all, &all), 0);
      EXPECT_EQ(usable_cores(), cores);
    }
    EXPECT_TRUE(elsewhere);
  }).join();
}

}  // namespace
}  // namespace chorus::testing
