// What shm alone has: addresses that lead into other processes, and memory that a peer may spoil.
#include <sys/stat.h>

#include <cerrno>
#include <climits>
#include <cstddef>

#include "ends.hpp"
#include "forbid_foreign_memory.hpp"
#include "transports/shm/foreign_memory.hpp"
#include "transports/shm/shm_memory.hpp"

namespace chorus::testing {
namespace {

const Way kThreads{"shm", "", false, "shm_threads"};
const Way kProcesses{"shm", "", true, "shm_processes"};
const LinkConfig kConfig{.region_bytes = 8192, .num_channels = 2};

std::unique_ptr<Transport> make(Rank rank, const LinkConfig& config = kConfig) {
  return make_transport("shm", context_for(kThreads, config, rank));
}

std::vector<std::byte> bytes_of(const ShmAddress& address) {
  return {address.bytes().begin(), address.bytes().end()};
}

TEST(ShmMessages, InARowAreStagedThoughOneAloneIsLeftToTheKernel) {
  constexpr std::size_t kBytes = 20'000;
  run_both(kernel_way(true), {.region_bytes = 2 * kBytes, .max_outstanding = 4}, [](End& end) {
    const auto sent = pattern(kBytes, 3);
    char byte = 0;
    if (end.rank == 0) {
      end.link.in_a_row(true);
      end.put(sent, 0, 0, 1);
      EXPECT_EQ(end.link.released(0), 1u);
      end.link.in_a_row(false);
      end.put(sent, kBytes, 0, 2);
      EXPECT_EQ(end.link.released(0), 1u) << "the peer has not looked yet";
      ASSERT_EQ(::send(end.side_channel, &byte, 1, MSG_NOSIGNAL), 1);
      end.flush();
      EXPECT_EQ(end.link.released(0), 2u);
      return end.meet();
    }
    ASSERT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
    end.await(0, 2);
    EXPECT_TRUE(end.matches(0, sent));
    EXPECT_TRUE(end.matches(kBytes, sent));
    end.meet();
  });
}

class ShmAddressTest : public ::testing::Test {
 protected:
  std::string why_not_after(const std::function<void(ShmAddress&)>& change) {
    ShmAddress address = *ShmAddress::parse(peer_->address());
    change(address);
    return self_->why_not(bytes_of(address)).value_or("");
  }

  std::unique_ptr<Transport> self_ = make(0);
  std::unique_ptr<Transport> peer_ = make(1);
};

TEST_F(ShmAddressTest, LeadsToThePeer) {
  EXPECT_EQ(self_->why_not(peer_->address()), std::nullopt);
  EXPECT_LE(peer_->address().size(), 1024u);
}

TEST_F(ShmAddressTest, OfAnotherHostOrNamespaceIsNotFollowed) {
  EXPECT_EQ(why_not_after([](ShmAddress& address) { address.host.boot[3] ^= 1; }), "other host");
  EXPECT_EQ(why_not_after([](ShmAddress& address) { address.host.pid_namespace += 1; }),
            "other pid namespace");
}

TEST_F(ShmAddressTest, ThatIsNoneIsRefused) {
  EXPECT_TRUE(self_->why_not({}).has_value());
  auto bytes = peer_->address();
  bytes.pop_back();
  EXPECT_TRUE(self_->why_not(bytes).has_value());
  bytes = peer_->address();
  bytes[0] ^= std::byte{1};
  EXPECT_TRUE(self_->why_not(bytes).has_value());
}

// Whatever it is made to point at, nothing is believed that does not prove the secret.
TEST_F(ShmAddressTest, ChangedAnywhereIsRefused) {
  auto bytes = peer_->address();
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (const int bit : {0, 7}) {
      const auto flip = static_cast<std::byte>(1 << bit);
      bytes[i] ^= flip;
      EXPECT_TRUE(self_->why_not(bytes).has_value()) << "byte " << i << " bit " << bit;
      EXPECT_THROW(static_cast<void>(self_->connect(1, bytes)), LinkError) << "byte " << i;
      bytes[i] ^= flip;
    }
  }
}

TEST_F(ShmAddressTest, OfADescriptorThatIsSomethingElseIsNotOpened) {
  // Opening a FIFO for real would block; a terminal or device could do worse.
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd read_end(ends[0]);
  const Fd write_end(ends[1]);
  const auto why = why_not_after([&](ShmAddress& address) { address.memory_fd = ends[0]; });
  EXPECT_NE(why.find("not what the peer published"), std::string::npos) << why;
}

TEST_F(ShmAddressTest, OfAProcessThatHasEndedSaysSo) {
  const auto why = why_not_after([](ShmAddress& address) { address.pid = INT_MAX; });
  EXPECT_NE(why.find("cannot open /proc/2147483647/fd/"), std::string::npos) << why;
}

TEST_F(ShmAddressTest, UnderAnotherSecretIsRefused) {
  TransportContext context = context_for(kThreads, kConfig, 1);
  context.secret = Secret::random();
  const auto unauthenticated = make_transport("shm", context);
  const auto why = self_->why_not(unauthenticated->address());
  ASSERT_TRUE(why.has_value());
  EXPECT_NE(why->find("secret"), std::string::npos) << *why;
}

TEST_F(ShmAddressTest, WithOtherSizesNamesBoth) {
  const auto other = make(1, {.region_bytes = 4096, .num_channels = 2});
  const auto why = self_->why_not(other->address());
  ASSERT_TRUE(why.has_value());
  EXPECT_NE(why->find("8192"), std::string::npos) << *why;
  EXPECT_NE(why->find("4096"), std::string::npos) << *why;
}

TEST_F(ShmAddressTest, OfAnotherRankIsRefusedByConnect) {
  auto context = context_for(kThreads, kConfig, 0);
  context.world_size = 3;
  const auto self = make_transport("shm", context);
  context.rank = 1;
  const auto peer = make_transport("shm", context);
  EXPECT_THROW(static_cast<void>(self->connect(2, peer->address())), LinkError);
}

TEST(Shm, MemoryCannotBeTakenAwayFromUnderAPeer) {
  const auto transport = make(0);
  const ShmAddress address = *ShmAddress::parse(transport->address());
  EXPECT_EQ(::ftruncate(address.memory_fd, 0), -1);
  EXPECT_EQ(errno, EPERM);
}

TEST(Shm, AThousandRanksCostNoMemoryUntilTheyTalk) {
  auto context = context_for(kThreads, {.region_bytes = 1 << 20, .num_channels = 8}, 0);
  context.world_size = 1000;
  const auto transport = make_transport("shm", context);
  const ShmAddress address = *ShmAddress::parse(transport->address());
  struct stat status {};
  ASSERT_EQ(::fstat(address.memory_fd, &status), 0);
  EXPECT_GT(status.st_size, 1000 << 20);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
}

/// Rank 1 puts something that no honest link writes into rank 0's ring.
void expect_refused(const std::function<void(ShmSlot&)>& lie) {
  const int status = run_ends(
      kProcesses, kConfig,
      [](End& end) {
        const auto before = pattern(kConfig.region_bytes, 1);
        std::copy(before.begin(), before.end(), end.link.region().begin());
        EXPECT_EQ(::send(end.side_channel, "m", 1, MSG_NOSIGNAL), 1);
        char byte = 0;
        EXPECT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
        EXPECT_THROW(static_cast<void>(end.link.arrivals(1)), LinkError);
        EXPECT_TRUE(end.matches(0, before)) << "wrote something all the same";
        EXPECT_EQ(::send(end.side_channel, "m", 1, MSG_NOSIGNAL), 1);
      },
      [&](End& end) {
        char byte = 0;
        EXPECT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
        const ShmGeometry geometry(context_for(kProcesses, kConfig, 1));
        // The region that the link maps ends the block that holds the ring.
        std::byte* block = end.link.peer_region().data() - geometry.region_offset();
        auto* slot = reinterpret_cast<ShmSlot*>(block + 2 * sizeof(ShmConsumed)) +
                     geometry.ring_slots;  // channel 1
        lie(*slot);
        slot->sequence.store(1);
        EXPECT_EQ(::send(end.side_channel, "m", 1, MSG_NOSIGNAL), 1);
        EXPECT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
      });
  EXPECT_EQ(status, 0);
}

TEST(Shm, APeerThatLiesAboutASlotIsRefused) {
  const std::pair<std::uint32_t, std::uint64_t> lies[] = {
      {41, 0}, {8, 8185}, {1, 8192}, {1, UINT64_MAX}, {0, 8193}, {0xfffffffd, 0}};
  for (const auto& [length, offset] : lies) {
    expect_refused([length = length, offset = offset](ShmSlot& slot) {
      slot.length = length;
      slot.offset = offset;
    });
  }
}

TEST(Shm, APeerThatLiesAboutMemoryElsewhereIsRefused) {
  const std::pair<std::uint64_t, std::uint64_t> lies[] = {
      {8193, 0}, {8, 8185}, {UINT64_MAX, 1}, {1, UINT64_MAX}};
  for (const auto& [size, offset] : lies) {
    expect_refused([size = size, offset = offset](ShmSlot& slot) {
      const ShmElsewhere where{0x1000, size};
      std::memcpy(slot.payload, &where, sizeof where);
      slot.length = ShmSlot::kElsewhere;
      slot.offset = offset;
    });
  }
}

// Rank 1 may not read rank 0, which brings what it had left to the kernel.
TEST(Shm, WhatTheKernelRefusesIsBroughtByThePutter) {
  const LinkConfig config{.region_bytes = 64 * 1024, .num_channels = 2, .max_outstanding = 8};
  run_both(kernel_way(true), config, [](End& end) {
    std::vector<std::vector<std::byte>> sent;
    for (std::uint64_t i = 0; i < 40; ++i) sent.push_back(pattern(1 + i % 5 * 2000, i));
    if (end.rank == 1) forbid_foreign_memory(EPERM);
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const std::size_t offset = i % 4 * 10'000;
      if (end.rank == 0) {
        end.put(sent[i], offset, 0, static_cast<std::uint32_t>(i));
        if (i % 4 == 3) end.await(1, (i + 1) / 4);
      } else {
        end.await(0, i + 1);
        EXPECT_EQ(end.link.tag(0, i), i);
        EXPECT_TRUE(end.matches(offset, sent[i])) << "put " << i;
        if (i % 4 == 3) end.signal(1, 0);
      }
    }
    end.flush();
    EXPECT_EQ(end.link.released(0), end.rank == 0 ? sent.size() : 0u);
    end.meet();
  });
}

TEST(Shm, APeerWhoseMemoryIsGoneIsNamed) {
  run_ends(
      kernel_way(true), kConfig,
      [](End& end) {
        EXPECT_EQ(::send(end.side_channel, "m", 1, MSG_NOSIGNAL), 1);  // this end is connected
        char byte = 0;
        EXPECT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
        EXPECT_EQ(::recv(end.side_channel, &byte, 1, 0), 0);  // it has ended
        ::siginfo_t ended{};
        EXPECT_EQ(::waitid(P_ALL, 0, &ended, WEXITED | WNOWAIT), 0);
        EXPECT_THROW(static_cast<void>(end.link.arrivals(0)), LinkError);
      },
      [](End& end) {
        const auto sent = pattern(4000, 1);
        end.put(sent, 0, 0, 0);
        char byte = 0;
        EXPECT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
        EXPECT_EQ(::send(end.side_channel, "m", 1, MSG_NOSIGNAL), 1);
        ::_exit(0);
      });
}

TEST(Shm, APeerThatClaimsToHaveTakenTooMuchIsRefused) {
  run_both(kThreads, kConfig, [](End& end) {
    const ShmGeometry geometry(context_for(kThreads, kConfig, end.rank));
    if (end.rank == 1) {
      std::byte* block = end.link.region().data() - geometry.region_offset();
      reinterpret_cast<ShmConsumed*>(block)->count.store(UINT64_MAX - 5);
    }
    end.meet();
    if (end.rank == 0) {
      EXPECT_THROW(static_cast<void>(end.link.try_put({}, 0, 0, 0)), LinkError);
    }
    end.meet();
  });
}

TEST(Shm, ASleeperIsWokenOnceThroughThePipe) {
  run_both(kProcesses, kConfig, [](End& end) {
    std::vector<pollfd> fds;
    end.transport.append_wake_fds(fds);
    ASSERT_EQ(fds.size(), 1u);
    if (end.rank == 1) {
      std::this_thread::sleep_for(50ms);
      end.signal(0, 0);
      end.signal(0, 0);  // the second finds nobody asleep
    } else {
      end.transport.prepare_to_sleep();
      EXPECT_EQ(::poll(fds.data(), 1, 10'000), 1);
      end.transport.woke();
      end.await(0, 2);
      EXPECT_EQ(::poll(fds.data(), 1, 0), 0) << "still readable: it would never sleep again";
    }
    end.meet();
  });
}

// Where the place begins just behind the source, pages aside, it is read by way of other memory.
TEST(ForeignMemory, IsReadToWhereverItIsFor) {
  constexpr std::size_t kPage = 4096;
  const auto from = pattern(300'000 + kPage, 5);
  std::vector<std::byte> to(from.size() + 2 * kPage);
  const auto offset_of = [](const std::byte* at) {
    return reinterpret_cast<std::uintptr_t>(at) % kPage;
  };
  for (const std::size_t bytes : {1, 64, 4096, 131'072, 131'073, 300'000}) {
    for (const std::size_t behind : {0, 1, 16, 63, 64, 4095}) {
      const std::byte* const source = from.data() + 7;
      const std::size_t shift = (offset_of(source) + behind + kPage - offset_of(to.data())) % kPage;
      std::ranges::fill(to, std::byte{0xEE});
      ASSERT_EQ(read_process(::getpid(), reinterpret_cast<std::uintptr_t>(source),
                             {to.data() + shift, bytes}),
                ForeignRead::done);
      EXPECT_TRUE(std::equal(source, source + bytes, to.data() + shift)) << bytes << " " << behind;
      EXPECT_EQ(to[shift + bytes], std::byte{0xEE});
      if (shift > 0) {
        EXPECT_EQ(to[shift - 1], std::byte{0xEE});
      }
    }
  }
  // Of memory that is not there nothing is made up.
  EXPECT_EQ(read_process(::getpid(), kPage, std::span(to).first(16)), ForeignRead::refused);
}

}  // namespace
}  // namespace chorus::testing
