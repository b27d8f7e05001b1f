// Puts straight out of the caller's memory, and what becomes of them when that memory is given
// back. Runs over adapters of the tests' own and, in the guest, over true verbs.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <cstring>

#include "chorus/memory.hpp"
#include "transports/ends.hpp"
#include "transports/rdma/link.hpp"
#include "transports/rdma/rdma.hpp"

namespace chorus::testing {
namespace {

const Way kWay{.transport = "rdma", .interface_name = "", .processes = false, .name = "rdma"};
constexpr std::size_t kKiB = 1024;
constexpr std::size_t kBytes = 32 * kKiB;  // one piece
const LinkConfig kLink{.region_bytes = 512 * kKiB, .num_channels = 1, .max_outstanding = 8};
/// So large that it has a segment, and so a mapping, of its own.
constexpr std::size_t kOwnMapping = std::size_t{16} << 20;

class RdmaDirectTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_rdma({})) GTEST_SKIP() << "no rdma: " << *reason;
  }
};

RdmaLink& rdma(End& end) { return dynamic_cast<RdmaLink&>(end.link); }

std::span<std::byte> allocated(std::size_t bytes) {
  return {static_cast<std::byte*>(chorus::allocate(bytes)), bytes};
}

/// Rank 0 puts what `fill` leaves at `src`, and the other finds it there.
class Exchange {
 public:
  explicit Exchange(End& end) : end_(end) { end_.meet(); }
  void put(std::span<std::byte> src) {
    const std::uint64_t number = made_++;
    const auto bytes = pattern(kBytes, number);
    if (end_.rank == 0) {
      std::memcpy(src.data(), bytes.data(), bytes.size());
      end_.put(src.first(kBytes), 0, 0, static_cast<std::uint32_t>(number));
      end_.flush();
      EXPECT_EQ(end_.link.released(0), made_);
    } else {
      end_.await(0, made_);
      EXPECT_TRUE(end_.matches(0, bytes)) << "put " << number;
    }
    end_.meet();
  }

 private:
  End& end_;
  std::uint64_t made_ = 0;
};

TEST_F(RdmaDirectTest, LargePutsOutOfAllocatedMemoryAreNotCopiedAndOthersAreOnce) {
  run_both(kWay, kLink, [](End& end) {
    std::vector<std::byte, Allocator<std::byte>> ours(512 * kKiB);
    std::vector<std::byte> heap(512 * kKiB);
    end.meet();
    const auto cost_of = [&](std::span<const std::byte> src, std::uint32_t tag) {
      const RdmaCounters before = rdma(end).counters();
      end.put(src, 0, 0, tag);
      end.flush();
      const RdmaCounters now = rdma(end).counters();
      return RdmaCounters{.work_requests = now.work_requests - before.work_requests,
                          .doorbells = now.doorbells - before.doorbells,
                          .signalled = now.signalled - before.signalled,
                          .copied_bytes = now.copied_bytes - before.copied_bytes,
                          .direct_bytes = now.direct_bytes - before.direct_bytes};
    };
    if (end.rank == 0) {
      const std::span<const std::byte> memory = ours;
      RdmaCounters cost = cost_of(memory.first(kBytes), 1);
      EXPECT_EQ(cost.direct_bytes, kBytes);
      EXPECT_EQ(cost.copied_bytes, 0u);
      EXPECT_EQ(cost.work_requests, 2u) << "its bytes, and its slot";
      EXPECT_EQ(cost.doorbells, 1u);
      EXPECT_EQ(cost.signalled, 1u) << "one word of the adapter that it has read all";
      cost = cost_of(memory.first(kBytes), 1);
      EXPECT_EQ(cost.work_requests, 1u) << "with the same tag";
      EXPECT_EQ(cost.signalled, 1u);
      cost = cost_of(memory.subspan(kKiB, 128 * kKiB), 1);
      EXPECT_EQ(cost.copied_bytes, 0u);
      const std::size_t rails = rdma(end).live_rails();
      EXPECT_EQ(cost.signalled, rails) << "one per piece";
      EXPECT_EQ(cost.doorbells, rails);
      EXPECT_EQ(rdma(end).hub().registrations.made(), 1u) << "once for all puts";

      cost = cost_of(memory.first(8 * kKiB), 1);
      EXPECT_EQ(cost.copied_bytes, 8 * kKiB) << "a copy is sooner done than the adapter";
      EXPECT_EQ(cost.direct_bytes, 0u);
      cost = cost_of(std::span<const std::byte>(heap).first(kBytes), 1);
      EXPECT_EQ(cost.copied_bytes, kBytes) << "nobody tells when other memory ends";
    } else {
      end.await(0, 5);
    }
    end.meet();
  });
}

TEST_F(RdmaDirectTest, MemoryMappedWhereOtherMemoryWasIsNeverServedByItsRegistration) {
  run_both(kWay, kLink, [](End& end) {
    Exchange exchange(end);
    std::span<std::byte> first;
    if (end.rank == 0) first = allocated(kOwnMapping);
    exchange.put(first);
    exchange.put(first);
    // Given back, and the same addresses mapped again by somebody else.
    void* const there = first.data();
    void* mapped = nullptr;
    if (end.rank == 0) {
      EXPECT_EQ(rdma(end).hub().registrations.made(), 1u);
      chorus::deallocate(there);
      mapped = ::mmap(there, kOwnMapping, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      ASSERT_EQ(mapped, there) << "the kernel gives the addresses away";
    }
    const RdmaCounters before = rdma(end).counters();
    exchange.put({static_cast<std::byte*>(mapped), kBytes});
    EXPECT_EQ(rdma(end).counters().direct_bytes, before.direct_bytes);
    // And once more by allocate(), which takes the hole that is left.
    std::span<std::byte> again;
    if (end.rank == 0) {
      ::munmap(mapped, kOwnMapping);
      again = allocated(kOwnMapping);
    }
    exchange.put(again);
    exchange.put(again);
    if (end.rank == 0) {
      EXPECT_EQ(rdma(end).hub().registrations.made(), 2u) << "a new segment, a new registration";
      chorus::deallocate(again.data());
    }
  });
}

// Pieces of an arena stay the same pages whoever holds them, so one registration serves them all.
TEST_F(RdmaDirectTest, PiecesThatAreGivenOutAgainNeedNoNewRegistration) {
  run_both(kWay, kLink, [](End& end) {
    Exchange exchange(end);
    std::span<std::byte> keeps_the_arena;
    if (end.rank == 0) keeps_the_arena = allocated(64);
    for (int round = 0; round < 4; ++round) {
      std::span<std::byte> piece;
      if (end.rank == 0) piece = allocated(kBytes);
      exchange.put(piece);
      if (end.rank == 0) chorus::deallocate(piece.data());
    }
    if (end.rank == 0) {
      EXPECT_EQ(rdma(end).hub().registrations.made(), 1u);
      chorus::deallocate(keeps_the_arena.data());
    }
  });
}

}  // namespace
}  // namespace chorus::testing
