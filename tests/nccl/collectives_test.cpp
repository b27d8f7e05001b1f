// Every collective, type and reduction gives what NCCL's documentation says, in and out of place.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "nccl/elements.hpp"
#include "ranks.hpp"

namespace chorus::testing {
namespace {

constexpr std::size_t kCount = 37;

/// 1 or 2: sums and products of up to four of them are exact in every type.
int value(int rank, std::size_t i) { return 1 + static_cast<int>((i + i / 3 + rank) % 2); }

template <class Narrow>
void put(std::byte* at, double number) {
  const Narrow narrow(static_cast<float>(number));
  std::memcpy(at, &narrow, sizeof narrow);
}

template <class Integer>
void put_integer(std::byte* at, double number) {
  const auto integer = static_cast<Integer>(number);
  std::memcpy(at, &integer, sizeof integer);
}

/// An array of one of NCCL's types.
class Elements {
 public:
  Elements(ncclDataType_t type, std::size_t count)
      : type_(type),
        own_(*nccl::type_of(type)),
        bytes_(std::max<std::size_t>(1, count) * size_of(own_), std::byte{0x2a}) {}

  [[nodiscard]] void* at(std::size_t i = 0) { return bytes_.data() + i * size_of(own_); }
  [[nodiscard]] double get(std::size_t i) const {
    return nccl::to_double(bytes_.data() + i * size_of(own_), own_);
  }
  void set(std::size_t i, double number) {
    auto* const place = static_cast<std::byte*>(at(i));
    switch (type_) {
      case ncclInt8:
        return put_integer<std::int8_t>(place, number);
      case ncclUint8:
        return put_integer<std::uint8_t>(place, number);
      case ncclInt32:
        return put_integer<std::int32_t>(place, number);
      case ncclUint32:
        return put_integer<std::uint32_t>(place, number);
      case ncclInt64:
        return put_integer<std::int64_t>(place, number);
      case ncclUint64:
        return put_integer<std::uint64_t>(place, number);
      case ncclFloat16:
        return put<Float16>(place, number);
      case ncclBfloat16:
        return put<BFloat16>(place, number);
      case ncclFloat32:
        return put<float>(place, number);
      case ncclFloat64:
        return put<double>(place, number);
      case ncclFloat8e4m3:
        return put<Float8E4M3>(place, number);
      default:
        return put<Float8E5M2>(place, number);
    }
  }

 private:
  ncclDataType_t type_;
  DataType own_;
  std::vector<std::byte> bytes_;
};

double reduced(ncclRedOp_t op, int ranks, std::size_t i, bool integer) {
  double result = value(0, i);
  for (int r = 1; r < ranks; ++r) {
    const double next = value(r, i);
    if (op == ncclSum || op == ncclAvg) result += next;
    if (op == ncclProd) result *= next;
    if (op == ncclMax) result = std::max(result, next);
    if (op == ncclMin) result = std::min(result, next);
  }
  if (op == ncclAvg) result /= ranks;
  return op == ncclAvg && integer ? std::trunc(result) : result;
}

struct Rank {
  ncclComm_t comm;
  int rank, ranks;
};

/// `blocks` blocks of this rank's values, block b's as if they followed those before it.
Elements input(const Rank& me, ncclDataType_t type, std::size_t blocks) {
  Elements data(type, blocks * kCount);
  for (std::size_t i = 0; i < blocks * kCount; ++i) data.set(i, value(me.rank, i));
  return data;
}

void check_reductions(const Rank& me, ncclDataType_t type, ncclRedOp_t op) {
  const auto n = static_cast<std::size_t>(me.ranks);
  const auto mine = static_cast<std::size_t>(me.rank);
  const bool integer = !nccl::is_float(*nccl::type_of(type));
  const std::string what =
      fmt::format("type {} op {}", static_cast<int>(type), static_cast<int>(op));
  for (const bool in_place : {false, true}) {
    Elements send = input(me, type, n), recv(type, kCount);
    void* out = in_place ? send.at() : recv.at();
    const auto result = [&](std::size_t i) { return in_place ? send.get(i) : recv.get(i); };
    ASSERT_OK(ncclAllReduce(send.at(), out, kCount, type, op, me.comm, nullptr));
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(result(i), reduced(op, me.ranks, i, integer)) << "all_reduce " << what;
    }
    send = input(me, type, n);
    const int root = me.ranks - 1;
    out = in_place ? send.at() : recv.at();
    ASSERT_OK(ncclReduce(send.at(), me.rank == root ? out : nullptr, kCount, type, op, root,
                         me.comm, nullptr));
    for (std::size_t i = 0; i < kCount && me.rank == root; ++i) {
      ASSERT_EQ(result(i), reduced(op, me.ranks, i, integer)) << "reduce " << what;
    }
    send = input(me, type, n);
    out = in_place ? send.at(mine * kCount) : recv.at();
    ASSERT_OK(ncclReduceScatter(send.at(), out, kCount, type, op, me.comm, nullptr));
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(in_place ? send.get(mine * kCount + i) : recv.get(i),
                reduced(op, me.ranks, mine * kCount + i, integer))
          << "reduce_scatter " << what;
    }
  }
}

void check_broadcasts(const Rank& me, ncclDataType_t type) {
  for (int root = 0; root < me.ranks; ++root) {
    Elements send = input(me, type, 1), recv(type, kCount);
    ASSERT_OK(ncclBroadcast(me.rank == root ? send.at() : nullptr, recv.at(), kCount, type, root,
                            me.comm, nullptr));
    ASSERT_OK(ncclBcast(send.at(), kCount, type, root, me.comm, nullptr));
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(recv.get(i), value(root, i)) << "broadcast, type " << static_cast<int>(type);
      ASSERT_EQ(send.get(i), value(root, i)) << "bcast, type " << static_cast<int>(type);
    }
  }
}

void check_blocks(const Rank& me, ncclDataType_t type) {
  const auto n = static_cast<std::size_t>(me.ranks);
  const auto mine = static_cast<std::size_t>(me.rank);
  const int root = me.ranks / 2;
  for (const bool in_place : {false, true}) {
    Elements own = input(me, type, 1), all(type, n * kCount);
    for (std::size_t i = 0; i < kCount; ++i) all.set(mine * kCount + i, value(me.rank, i));
    void* const block = in_place ? all.at(mine * kCount) : own.at();
    ASSERT_OK(ncclAllGather(block, all.at(), kCount, type, me.comm, nullptr));
    for (std::size_t i = 0; i < n * kCount; ++i) {
      ASSERT_EQ(all.get(i), value(static_cast<int>(i / kCount), i % kCount)) << "all_gather";
    }
    const bool at_root = me.rank == root;
    Elements gathered(type, n * kCount);
    for (std::size_t i = 0; i < kCount; ++i) gathered.set(mine * kCount + i, value(me.rank, i));
    ASSERT_OK(ncclGather(in_place && at_root ? gathered.at(mine * kCount) : own.at(),
                         at_root ? gathered.at() : nullptr, kCount, type, root, me.comm, nullptr));
    for (std::size_t i = 0; i < n * kCount && at_root; ++i) {
      ASSERT_EQ(gathered.get(i), value(static_cast<int>(i / kCount), i % kCount)) << "gather";
    }
    Elements spread = input(me, type, n), part(type, kCount);
    const bool keeps = in_place && at_root;
    ASSERT_OK(ncclScatter(at_root ? spread.at() : nullptr,
                          keeps ? spread.at(mine * kCount) : part.at(), kCount, type, root, me.comm,
                          nullptr));
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(keeps ? spread.get(mine * kCount + i) : part.get(i), value(root, mine * kCount + i))
          << "scatter";
    }
    Elements out = input(me, type, n), in(type, n * kCount);
    ASSERT_OK(
        ncclAlltoAll(out.at(), in_place ? out.at() : in.at(), kCount, type, me.comm, nullptr));
    for (std::size_t i = 0; i < n * kCount; ++i) {
      ASSERT_EQ(in_place ? out.get(i) : in.get(i),
                value(static_cast<int>(i / kCount), mine * kCount + i % kCount))
          << "all_to_all";
    }
  }
}

TEST(Collectives, EveryTypeAndReductionIsRightInAndOutOfPlace) {
  for (const int ranks : {1, 2, 4}) {
    run_ranks(ranks, [&](ncclComm_t comm, int rank) {
      const Rank me{comm, rank, ranks};
      for (int type = 0; type < ncclNumTypes; ++type) {
        // All of them between two; elsewhere one of each kind.
        if (ranks != 2 && type != ncclInt32 && type != ncclBfloat16) continue;
        for (int op = 0; op < ncclNumOps; ++op) {
          check_reductions(me, static_cast<ncclDataType_t>(type), static_cast<ncclRedOp_t>(op));
        }
        check_broadcasts(me, static_cast<ncclDataType_t>(type));
        check_blocks(me, static_cast<ncclDataType_t>(type));
      }
    });
  }
}

// Rank r multiplies by r + 2: the sum is Σ (r + 2) · value(r, i).
TEST(Collectives, PreMultipliedSumsAreRightForEveryTypeAndResidence) {
  run_ranks(2, [](ncclComm_t comm, int rank) {
    for (int t = 0; t < ncclNumTypes; ++t) {
      const auto type = static_cast<ncclDataType_t>(t);
      for (const auto residence : {ncclScalarHostImmediate, ncclScalarDevice}) {
        Elements scalar(type, 1);
        // Immediate: read at once; else when the call runs.
        scalar.set(0, residence == ncclScalarHostImmediate ? rank + 2 : 99);
        ncclRedOp_t op;
        ASSERT_OK(ncclRedOpCreatePreMulSum(&op, scalar.at(), type, residence, comm));
        EXPECT_GE(op, ncclNumOps);
        scalar.set(0, residence == ncclScalarHostImmediate ? 99 : rank + 2);
        Elements send = input({comm, rank, 2}, type, 1), recv(type, kCount);
        ASSERT_OK(ncclAllReduce(send.at(), recv.at(), kCount, type, op, comm, nullptr));
        ASSERT_OK(ncclRedOpDestroy(op, comm));
        for (std::size_t i = 0; i < kCount; ++i) {
          ASSERT_EQ(recv.get(i), 2 * value(0, i) + 3 * value(1, i)) << "type " << t;
          ASSERT_EQ(send.get(i), value(rank, i)) << "the input is left alone, type " << t;
        }
        EXPECT_REFUSED(ncclAllReduce(send.at(), recv.at(), kCount, type, op, comm, nullptr),
                       ncclInvalidArgument, "does not exist");
      }
    }
  });
}

// A double cannot hold the factor: the product must be exact all the same, and wrap.
TEST(Collectives, IntegersArePreMultipliedExactly) {
  run_ranks(2, [](ncclComm_t comm, int rank) {
    std::int64_t factor = (std::int64_t{1} << 60) + 1;
    ncclRedOp_t op;
    ASSERT_OK(ncclRedOpCreatePreMulSum(&op, &factor, ncclInt64, ncclScalarHostImmediate, comm));
    std::vector<std::int64_t> data{rank + 1, 3};
    ASSERT_OK(ncclAllReduce(data.data(), data.data(), 2, ncclInt64, op, comm, nullptr));
    EXPECT_EQ(data[0], 3 * factor);
    EXPECT_EQ(data[1], 6 * factor);
    ASSERT_OK(ncclRedOpDestroy(op, comm));
  });
}

TEST(Collectives, NothingIsDoneForACountOfZero) {
  run_ranks(2, [](ncclComm_t comm, int rank) {
    // Only one rank calls: collectives of nothing wait for nobody.
    if (rank == 0) {
      EXPECT_OK(ncclAllReduce(nullptr, nullptr, 0, ncclFloat, ncclSum, comm, nullptr));
      EXPECT_OK(ncclAlltoAll(nullptr, nullptr, 0, ncclFloat, comm, nullptr));
    }
  });
}

}  // namespace
}  // namespace chorus::testing
