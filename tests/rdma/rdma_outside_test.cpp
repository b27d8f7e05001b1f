// Puts out of and into memory that only adapters reach, as a GPU's: no byte of it is touched by the
// processor, which would be killed for it, unless no adapter is left.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>

#include "rdma/fake_verbs.hpp"
#include "rdma/traffic.hpp"
#include "transports/ends.hpp"
#include "transports/rdma/link.hpp"
#include "transports/rdma/rdma.hpp"

namespace chorus::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const Way kWay{.transport = "rdma", .interface_name = "", .processes = false, .name = "rdma"};
constexpr std::size_t kPage = 4096;

RdmaLink& rdma(End& end) { return dynamic_cast<RdmaLink&>(end.link); }

/// What a GPU has: addresses that fault here, pages that adapters and its kernels reach.
class Gpu final : public DeviceMemory {
 public:
  /// `claimed`: says that its memory begins there.
  explicit Gpu(std::size_t bytes, std::uint64_t claimed = 0)
      : claimed_(claimed), size_(bytes), file_(::memfd_create("gpu", MFD_CLOEXEC)) {
    EXPECT_EQ(::ftruncate(file_.get(), static_cast<off_t>(bytes)), 0);
    forbidden_ = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    inside_ = static_cast<std::byte*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_.get(), 0));
    EXPECT_NE(forbidden_, MAP_FAILED);
    EXPECT_NE(static_cast<void*>(inside_), MAP_FAILED);
  }
  ~Gpu() override {
    ::munmap(forbidden_, size_);
    ::munmap(inside_, size_);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int descriptor() const override { return file_.get(); }
  std::uint64_t address() const override {
    return claimed_ != 0 ? claimed_ : reinterpret_cast<std::uint64_t>(forbidden_);
  }
  std::size_t size() const override { return size_; }
  void read(std::uint64_t from, std::span<std::byte> to) override {
    check();
    EXPECT_TRUE(holds(from, to.size()));
    std::memcpy(to.data(), inside_ + (from - address()), to.size());
    ++reads;
  }
  void write(std::uint64_t to, std::span<const std::byte> from) override {
    check();
    EXPECT_TRUE(holds(to, from.size()));
    std::memcpy(inside_ + (to - address()), from.data(), from.size());
    ++writes;
  }

  /// As its kernels reach it.
  [[nodiscard]] std::span<std::byte> kernels() const { return {inside_, size_}; }
  /// As a link is given it.
  [[nodiscard]] std::span<const std::byte> at(std::size_t offset, std::size_t bytes) const {
    return {static_cast<const std::byte*>(forbidden_) + offset, bytes};
  }

  std::atomic<int> reads{0};
  std::atomic<int> writes{0};
  std::atomic<bool> broken{false};

 private:
  void check() const {
    if (broken) throw DeviceError("the GPU has fallen off the bus");
  }

  std::uint64_t claimed_;
  std::size_t size_;
  Fd file_;
  void* forbidden_ = nullptr;
  std::byte* inside_ = nullptr;
};

/// Which sides of a link are on GPUs.
struct Sides {
  bool source = true;
  bool landing = true;
};

/// One rank's GPUs, lent to its link before that is used. The places of puts lie a page into the
/// memory, so that an adapter that counts from elsewhere is found out.
struct Lent {
  Lent(End& end, const LinkConfig& config, Sides sides)
      : source(std::make_shared<Gpu>(config.region_bytes + 2 * kPage)),
        landing(std::make_shared<Gpu>(config.region_bytes + 2 * kPage)),
        bytes(config.region_bytes),
        lands(sides.landing) {
    if (sides.source) rdma(end).send_from(source, source->address() + kPage, bytes);
    if (sides.landing) rdma(end).land_in(landing, landing->address() + kPage, bytes);
  }
  [[nodiscard]] std::span<std::byte> kernel_source(std::size_t offset, std::size_t size) const {
    return source->kernels().subspan(kPage + offset, size);
  }
  [[nodiscard]] std::span<const std::byte> put_source(std::size_t offset, std::size_t size) const {
    return source->at(kPage + offset, size);
  }
  [[nodiscard]] bool matches(End& end, std::size_t offset,
                             std::span<const std::byte> expected) const {
    if (!lands) return end.matches(offset, expected);
    return std::ranges::equal(landing->kernels().subspan(kPage + offset, expected.size()),
                              expected);
  }

  std::shared_ptr<Gpu> source;
  std::shared_ptr<Gpu> landing;
  std::size_t bytes;
  bool lands;
};

/// `puts` from either end, sizes at random and all sizes about which anything changes, out of GPU
/// memory where `lent` has it; a place is spoilt as soon as it is released.
void exchange(End& end, const Lent& lent, bool from_gpu, std::uint64_t seed, std::uint64_t puts,
              const Midway& midway, std::uint64_t before) {
  constexpr std::uint64_t kSlots = Traffics::kSlots;
  constexpr std::size_t kSlot = Traffics::kSlot;
  std::vector<std::byte> heap(from_gpu ? 0 : kSlots * kSlot);
  const auto size_of_put = [&](Rank from, std::uint64_t i) -> std::size_t {
    constexpr std::size_t kEdges[] = {0,     1,     64,    65,        232,     233,       4096,
                                      16383, 16384, 65535, 64 * 1024, 100'001, kSlot - 1, kSlot};
    std::mt19937_64 random(seed * 7919 + i * 2 + static_cast<std::uint64_t>(from));
    return i < std::size(kEdges) ? kEdges[i] : random() % (kSlot + 1);
  };
  const auto seed_of = [&](Rank from, std::uint64_t i) {
    return seed + i * 2 + static_cast<std::uint64_t>(from);
  };
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  std::uint64_t spoilt = 0;
  const auto place = [&](std::uint64_t i, std::size_t size) {
    const std::size_t offset = i % kSlots * kSlot;
    return from_gpu ? lent.kernel_source(offset, size) : std::span(heap).subspan(offset, size);
  };
  const auto send = [&] {
    for (; spoilt + before < end.link.released(0); ++spoilt) {
      std::ranges::fill(place(spoilt, kSlot), std::byte{0xee});
    }
    if (sent >= puts || sent >= spoilt + kSlots) return;
    if (sent + before >= end.link.arrivals(1) + kSlots) return;
    const auto bytes = pattern(size_of_put(end.rank, sent), seed_of(end.rank, sent));
    const auto filled = place(sent, bytes.size());
    std::ranges::copy(bytes, filled.begin());
    const std::size_t offset = sent % kSlots * kSlot;
    const auto src = from_gpu ? lent.put_source(offset, bytes.size()) : filled;
    if (end.link.try_put(src, offset, 0, static_cast<std::uint32_t>(sent / 3))) ++sent;
  };
  const auto receive = [&] {
    if (received + before >= end.link.arrivals(0)) return;
    const Rank peer = 1 - end.rank;
    EXPECT_EQ(end.link.tag(0, before + received), received / 3);
    EXPECT_TRUE(lent.matches(end, received % kSlots * kSlot,
                             pattern(size_of_put(peer, received), seed_of(peer, received))))
        << "put " << received;
    end.signal(1, 0);
    ++received;
  };
  end.until(
      [&] {
        if (midway) midway(sent);
        send();
        receive();
        end.advance();
        return sent == puts && received == puts && end.link.progress();
      },
      "traffic");
  EXPECT_EQ(end.link.released(0), before + puts);
}

/// exchange() until both ends are through.
void traffic(End& end, const Lent& lent, bool from_gpu, std::uint64_t seed, std::uint64_t puts,
             const Midway& midway = {}, std::uint64_t before = 0) {
  exchange(end, lent, from_gpu, seed, puts, midway, before);
  end.meet();
}

const LinkConfig kTraffic{.region_bytes = Traffics::kSlots * Traffics::kSlot,
                          .num_channels = 2,
                          .max_outstanding = Traffics::kSlots};

class RdmaOutsideTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::reset(2); }
  void TearDown() override {
    EXPECT_THAT(fake::violations(), IsEmpty());
    EXPECT_THAT(fake::registered_dmabufs(), IsEmpty());
  }
};

TEST_F(RdmaOutsideTest, PutsOfEverySizeGoFromGpuToGpuByTheAdaptersAlone) {
  run_both(kWay, kTraffic, [](End& end) {
    const Lent lent(end, kTraffic, {});
    traffic(end, lent, true, 1, 60);
    EXPECT_EQ(rdma(end).counters().copied_bytes, 0u);
    EXPECT_EQ(rdma(end).counters().brought_bytes, 0u);
    EXPECT_EQ(lent.source->reads + lent.landing->writes, 0);
    EXPECT_GT(rdma(end).counters().direct_bytes, 1'000'000u);
  });
  const fake::Calls calls = fake::calls();
  EXPECT_EQ(calls.bytes_of_dmabufs, calls.bytes_to_dmabufs);
  EXPECT_EQ(calls.dmabufs, 8u) << "two ranks, two adapters, a source and a landing each";
}

TEST_F(RdmaOutsideTest, GpuMemoryMeetsTheOtherEndsHostMemoryEitherWay) {
  for (const Sides rank0 : {Sides{true, false}, Sides{false, true}}) {
    run_both(kWay, kTraffic, [&](End& end) {
      const Sides sides = end.rank == 0 ? rank0 : Sides{false, false};
      const Lent lent(end, kTraffic, sides);
      traffic(end, lent, sides.source, 2, 40);
      EXPECT_EQ(lent.source->reads + lent.landing->writes, 0);
    });
  }
}

TEST_F(RdmaOutsideTest, ARailThatFailsInMidUseLosesNothing) {
  for (const int unheard : {0, 1, 3}) {
    for (const long after : {20L, 33L, 47L, 60L}) {
      fake::reset(2);
      run_both(kWay, kTraffic, [&](End& end) {
        const Lent lent(end, kTraffic, {});
        bool armed = false;
        const auto midway = [&](std::uint64_t made) {
          if (end.rank != 0 || armed || made < 10) return;
          armed = true;
          fake::adapter(0).unheard = unheard;
          fake::adapter(0).breaks_after = after;
        };
        exchange(end, lent, true, 3, 80, midway, 0);
        // Before they meet: who is through then may leave, and takes the other rail along.
        EXPECT_EQ(rdma(end).live_rails(), 1u);
        end.meet();
      });
      EXPECT_THAT(fake::violations(), IsEmpty()) << after << " " << unheard;
    }
  }
}

TEST_F(RdmaOutsideTest, WhereNoAdapterIsLeftItsBytesAreStagedOverTcp) {
  fake::reset(1);
  run_both(kWay, kTraffic, [&](End& end) {
    const Lent lent(end, kTraffic, {});
    bool armed = false;
    traffic(end, lent, true, 4, 60, [&](std::uint64_t made) {
      if (end.rank != 0 || armed || made < 20) return;
      armed = true;
      fake::adapter(0).unheard = 2;
      fake::adapter(0).breaks_after = 9;
    });
    EXPECT_EQ(rdma(end).live_rails(), 0u);
    EXPECT_GT(lent.source->reads, 0);
    EXPECT_GT(lent.landing->writes, 0);
    EXPECT_GT(rdma(end).counters().direct_bytes, 0u);
    EXPECT_GT(rdma(end).counters().copied_bytes, 0u);
    EXPECT_GT(rdma(end).counters().brought_bytes, 0u);
  });
}

TEST_F(RdmaOutsideTest, ARailThatComesBackReachesTheGpusAgain) {
  fake::reset(1);
  run_both(kWay, kTraffic, [&](End& end) {
    const Lent lent(end, kTraffic, {});
    traffic(end, lent, true, 5, 10);
    if (end.rank == 0) {
      fake::adapter(0).port_active = false;
      fake::raise(0, IBV_EVENT_PORT_ERR);
    }
    end.meet();
    end.until(
        [&] {
          end.advance();
          return rdma(end).live_rails() == 0;
        },
        "the rail to fail");
    traffic(end, lent, true, 6, 20, {}, 10);
    const std::uint64_t copied = rdma(end).counters().copied_bytes;
    const std::uint64_t brought = rdma(end).counters().brought_bytes;
    EXPECT_GT(copied, 0u);
    if (end.rank == 0) {
      fake::adapter(0).port_active = true;
      fake::raise(0, IBV_EVENT_PORT_ACTIVE);
    }
    end.until(
        [&] {
          end.advance();
          return rdma(end).live_rails() == 1;
        },
        "the rail to return");
    end.meet();
    traffic(end, lent, true, 7, 20, {}, 30);
    EXPECT_EQ(rdma(end).counters().copied_bytes, copied);
    EXPECT_EQ(rdma(end).counters().brought_bytes, brought);
  });
}

TEST_F(RdmaOutsideTest, MemoryThatOneAdapterRefusesIsNotLentAtAll) {
  fake::adapter(1).refuses_dmabufs = true;
  run_both(kWay, kTraffic, [&](End& end) {
    const auto gpu = std::make_shared<Gpu>(kTraffic.region_bytes);
    const auto refused = [](const auto& lend) {
      std::string why;
      try {
        lend();
      } catch (const LinkError& error) {
        why = error.what();
      }
      EXPECT_THAT(why, AllOf(HasSubstr("fake1 port 1"), HasSubstr("dma-buf")));
    };
    refused([&] { rdma(end).send_from(gpu, gpu->address(), gpu->size()); });
    refused([&] { rdma(end).land_in(gpu, gpu->address(), gpu->size()); });
    end.meet();  // the other's attempts are over, too
    EXPECT_THAT(fake::registered_dmabufs(), IsEmpty());
    const Lent nothing(end, kTraffic, {false, false});
    traffic(end, nothing, false, 8, 20);
  });
}

TEST_F(RdmaOutsideTest, ALinkThatIsTakenAwayInMidTransferLetsGoOfTheMemory) {
  run_both(kWay, kTraffic, [&](End& end) {
    const Lent lent(end, kTraffic, {});
    traffic(end, lent, true, 9, 5);
    fake::adapter(0).breaks_after = 0;
    fake::adapter(0).unheard = 1000;  // nobody will hear of what is under way now
    fake::adapter(1).breaks_after = 0;
    fake::adapter(1).unheard = 1000;
    for (int i = 0; i < 3; ++i) {
      static_cast<void>(end.link.try_put(lent.put_source(0, Traffics::kSlot), 0, 0, 1));
    }
  });
}

/// What the link says when it is used until it ends.
std::string end_of(End& end, const std::function<void()>& use) {
  std::string why;
  end.until(
      [&] {
        try {
          use();
          end.advance();
        } catch (const LinkError& error) {
          why = error.what();
        }
        return !why.empty();
      },
      "the link to end");
  return why;
}

TEST_F(RdmaOutsideTest, APeerThatDiesInMidTransferIsNamed) {
  run_both(kWay, kTraffic, [](End& end) {
    const Lent lent(end, kTraffic, {});
    traffic(end, lent, true, 11, 5);
    if (end.rank == 1) {  // its sockets are closed as the kernel closes them for it
      std::vector<pollfd> fds;
      rdma(end).append_wake_fds(fds);
      for (const pollfd& fd : fds) ::shutdown(fd.fd, SHUT_RDWR);
      return;
    }
    EXPECT_THAT(
        end_of(end,
               [&] { static_cast<void>(end.link.try_put(lent.put_source(0, 70'000), 0, 0, 1)); }),
        AllOf(HasSubstr("rank 1"), HasSubstr("without a goodbye")));
  });
}

TEST_F(RdmaOutsideTest, APeersMemoryThatCannotBeIsNotBelieved) {
  run_both(kWay, kTraffic, [](End& end) {
    // So near the end of all addresses that it would go round.
    const auto gpu = std::make_shared<Gpu>(kTraffic.region_bytes, ~std::uint64_t{0} - kPage + 1);
    if (end.rank == 1) rdma(end).land_in(gpu, gpu->address(), gpu->size());
    const std::string why = end_of(end, [] {});
    EXPECT_THAT(why, HasSubstr(end.rank == 0 ? "a connect with memory that cannot be" : "rank 0"));
  });
}

TEST_F(RdmaOutsideTest, APutBeyondThePeersMemoryIsNotMade) {
  run_both(kWay, kTraffic, [](End& end) {
    const auto gpu = std::make_shared<Gpu>(2 * kPage);
    if (end.rank == 1) rdma(end).land_in(gpu, gpu->address(), gpu->size());
    end.meet();
    const std::vector<std::byte> bytes(64);
    if (end.rank == 0) {
      end.put(bytes, 2 * kPage - 64, 0, 1);
      EXPECT_THAT(end_of(end, [&] { end.put(bytes, 2 * kPage - 63, 0, 1); }),
                  HasSubstr("less memory"));
    } else {
      end.await(0, 1);
    }
  });
}

// The one that is read from, and the one that is written to, when adapters can do neither.
TEST_F(RdmaOutsideTest, AGpuThatFailsEndsTheLinkWithItsSentence) {
  for (const Rank broken : {0, 1}) {
    fake::reset(1);
    std::atomic<int> past{0};
    std::atomic<bool> set{false};
    std::atomic<bool> over{false};
    run_both(kWay, kTraffic, [&](End& end) {
      const Lent lent(end, kTraffic, {});
      traffic(end, lent, true, 10, 5);
      if (end.rank == 0) {
        fake::adapter(0).port_active = false;
        fake::raise(0, IBV_EVENT_PORT_ERR);
      }
      end.until(
          [&] {
            end.advance();
            return rdma(end).live_rails() == 0;
          },
          "the rail to fail");
      ++past;  // from here on either end may hear that the other's has ended
      end.until([&] { return past == 2; }, "the rail to fail there");
      const auto put = [&] { end.put(lent.put_source(0, 100), 0, 0, 1); };
      if (end.rank != broken) {
        end.until([&] { return set.load(); }, "the GPU to fail");
        if (end.rank == 0) put();
        end.until(
            [&] {
              try {
                end.advance();
              } catch (const LinkError&) {  // the other end has ended
              }
              return over.load();
            },
            "the other end to be told");
        return;
      }
      (broken == 0 ? lent.source : lent.landing)->broken = true;
      set = true;
      EXPECT_THAT(broken == 0 ? end_of(end, put) : end_of(end, [] {}),
                  HasSubstr("fallen off the bus"));
      over = true;
    });
  }
}

}  // namespace
}  // namespace chorus::testing
