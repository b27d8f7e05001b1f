// One suite for every transport: what the Link contract promises, between threads and between
// processes.
#include "transports/link/link.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <random>

#include "ends.hpp"
#include "transports/rdma/rdma.hpp"

namespace chorus::testing {
namespace {

class LinkTest : public ::testing::TestWithParam<Way> {};

constexpr std::size_t kKiB = 1024;

/// Adapters are emulated where these tests have some, and slow.
std::uint64_t fewer(const Way& way, std::uint64_t puts) {
  return way.transport == "rdma" ? puts / 4 : puts;
}

std::size_t entries_of(const char* directory) {
  const std::filesystem::directory_iterator entries(directory);
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

TEST_P(LinkTest, PutsOfEverySizeArriveWholeAndNowhereElse) {
  const LinkConfig config{.region_bytes = 256 * kKiB};
  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size <= 132; ++size) sizes.push_back(size);
  for (std::size_t size = 256; size < config.region_bytes; size *= 2) {
    for (const std::size_t near : {size - 1, size, size + 1}) sizes.push_back(near);
  }
  sizes.push_back(config.region_bytes);

  run_both(GetParam(), config, [&](End& end) {
    std::mt19937_64 random(7);  // the same on both ranks
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::size_t size = sizes[i];
      const std::size_t offset = random() % (config.region_bytes - size + 1);
      const auto sent = pattern(size, i);
      if (end.rank == 0) {
        end.await(0, i + 1);  // rank 1 is ready
        end.put(sent, offset, 0, static_cast<std::uint32_t>(i));
        end.flush();
        continue;
      }
      const auto region = end.link.region();
      std::fill(region.begin(), region.end(), std::byte{0xee});
      end.signal(0, 0);
      end.await(0, i + 1);
      ASSERT_EQ(end.link.tag(0, i), i);
      ASSERT_TRUE(end.matches(offset, sent)) << size << " bytes at " << offset;
      ASSERT_EQ(std::count(region.begin(), region.begin() + static_cast<std::ptrdiff_t>(offset),
                           std::byte{0xee}),
                static_cast<std::ptrdiff_t>(offset));
      ASSERT_TRUE(offset + size == region.size() || region[offset + size] == std::byte{0xee});
    }
  });
}

TEST_P(LinkTest, ArrivalsOfAChannelKeepTheOrderOfTheirPuts) {
  const LinkConfig config{.region_bytes = 512 * kKiB, .num_channels = 2, .max_outstanding = 16};
  constexpr std::uint64_t kPuts = 4000;
  constexpr std::size_t kSlot = 32 * kKiB;
  run_both(GetParam(), config, [&](End& end) {
    std::mt19937_64 random(3);
    std::vector<std::vector<std::byte>> live(16);
    for (std::uint64_t i = 0; i < kPuts; ++i) {
      // Large and small mixed: over several sockets the small ones would overtake.
      const std::size_t size = i % 3 == 0 ? random() % kSlot : random() % 64;
      const std::size_t offset = i % 16 * kSlot;
      if (end.rank == 0) {
        if (i >= 16) end.await(1, i - 15);  // a slot is free: rank 1 says so on channel 1
        end.until([&] { return end.link.progress() || end.link.released(0) + 16 > i; }, "release");
        live[i % 16] = pattern(size, i);
        end.put(live[i % 16], offset, 0, static_cast<std::uint32_t>(i * 7));
      } else {
        end.await(0, i + 1);
        ASSERT_EQ(end.link.tag(0, i), static_cast<std::uint32_t>(i * 7));
        ASSERT_TRUE(end.matches(offset, pattern(size, i))) << "put " << i;
        end.signal(1, 0);
      }
    }
    end.flush();
    end.meet();
  });
}

TEST_P(LinkTest, SignalsOfNoBytesCarryTheirTags) {
  run_both(GetParam(), {.region_bytes = 64, .num_channels = 3}, [](End& end) {
    for (std::uint32_t i = 0; i < 500; ++i) {
      for (ChannelId channel = 0; channel < 3; ++channel) {
        end.signal(channel, i << 8 | static_cast<std::uint32_t>(channel));
      }
      for (ChannelId channel = 2; channel >= 0; --channel) {
        end.await(channel, i + 1);
        EXPECT_EQ(end.link.tag(channel, i), i << 8 | static_cast<std::uint32_t>(channel));
      }
    }
    end.flush();
    end.meet();
  });
}

TEST_P(LinkTest, NothingMovesWithoutARegionButSignals) {
  run_both(GetParam(), {.region_bytes = 0}, [](End& end) {
    EXPECT_TRUE(end.link.region().empty());
    end.signal(0, 42);
    end.await(0, 1);
    EXPECT_EQ(end.link.tag(0, 0), 42u);
    end.flush();
    end.meet();
  });
}

TEST_P(LinkTest, AFullChannelDoesNotHoldUpAnother) {
  const LinkConfig config{.region_bytes = 128 * kKiB, .num_channels = 2, .max_outstanding = 8};
  run_both(GetParam(), config, [](End& end) {
    const auto block = pattern(64 * kKiB, 1);
    if (end.rank == 0) {
      end.until([&] { return end.link.progress(); }, "connecting");
      // Channel 0 takes at least what was promised; then we leave it alone.
      for (int i = 0; i < 8; ++i) end.put(block, 0, 0, 0);
      for (std::uint32_t i = 0; i < 300; ++i) {
        end.signal(1, i);
        end.await(1, i + 1);
      }
      end.flush();
    } else {
      for (std::uint32_t i = 0; i < 300; ++i) {
        end.await(1, i + 1);  // never looks at channel 0
        ASSERT_EQ(end.link.tag(1, i), i);
        end.signal(1, i);
      }
      end.await(0, 8);
      EXPECT_TRUE(end.matches(0, block));
    }
    end.meet();
  });
}

TEST_P(LinkTest, ASenderAheadOfASlowPeerIsHeldBackAndLosesNothing) {
  const LinkConfig config{.region_bytes = 64 * kKiB, .max_outstanding = 8};
  const std::uint64_t total = fewer(GetParam(), 3000);
  run_both(GetParam(), config, [&](End& end) {
    const auto block = pattern(64 * kKiB, 5);
    if (end.rank == 0) {
      std::uint64_t made = 0;
      std::uint64_t refused = 0;
      end.until([&] { return end.link.try_put(block, 0, 0, 0) || (end.advance(), false); },
                "first");
      for (made = 1; made < total && refused < 1000;) {
        if (end.link.try_put(block, 0, 0, static_cast<std::uint32_t>(made))) {
          ++made;
          refused = 0;
        } else {
          ++refused;
          end.advance();
        }
      }
      EXPECT_GE(made, 8u) << "fewer than max_outstanding";
      EXPECT_LT(made, total) << "nothing held the sender back";
      EXPECT_LE(end.link.released(0), made);
      end.meet();  // from here on rank 1 reads
      for (; made < total; ++made) end.put(block, 0, 0, static_cast<std::uint32_t>(made));
      end.flush();
      EXPECT_EQ(end.link.released(0), total);
    } else {
      end.await(0, 1);
      char byte = 0;  // meet(), but without making any progress
      ASSERT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
      ASSERT_EQ(::send(end.side_channel, "m", 1, MSG_NOSIGNAL), 1);
      std::uint64_t seen = 0;
      while (seen < total) {
        end.await(0, seen + 1);
        const std::uint64_t count = end.link.arrivals(0);
        ASSERT_EQ(end.link.tag(0, count - 1), count - 1);
        seen = count;
      }
      EXPECT_TRUE(end.matches(0, block));
    }
    end.meet();
  });
}

TEST_P(LinkTest, FloodsInBothDirectionsDoNotDeadlock) {
  const LinkConfig config{.region_bytes = 128 * kKiB, .num_channels = 2, .max_outstanding = 4};
  const std::uint64_t total = fewer(GetParam(), 1500);
  run_both(GetParam(), config, [&](End& end) {
    const auto block = pattern(128 * kKiB, end.rank);
    std::uint64_t made[2] = {};
    end.until(
        [&] {
          for (ChannelId channel = 0; channel < 2; ++channel) {
            while (made[channel] < total && end.link.try_put(block, 0, channel, 0)) ++made[channel];
          }
          end.advance();
          const bool received = end.link.arrivals(0) == total && end.link.arrivals(1) == total;
          return made[0] == total && made[1] == total && end.link.progress() && received;
        },
        "flood");
    end.meet();
  });
}

// Both directions, all channels at once, sizes at random, each channel with its own slots and
// credits: the use the executor makes of a link, with every byte checked.
TEST_P(LinkTest, RandomTrafficArrivesIntact) {
  constexpr int kChannels = 3;
  constexpr std::uint64_t kSlots = 4;
  constexpr std::size_t kSlot = 96 * kKiB;
  constexpr std::uint64_t kPuts = 600;
  const LinkConfig config{.region_bytes = kChannels * kSlots * kSlot,
                          .num_channels = 2 * kChannels,  // data, and credits beside it
                          .max_outstanding = kSlots};
  run_both(GetParam(), config, [](End& end) {
    const auto size_of_put = [](Rank from, int channel, std::uint64_t i) -> std::size_t {
      std::mt19937_64 random(i * 1009 + static_cast<std::uint64_t>(channel * 2 + from));
      return random() % 4 == 0 ? random() % (kSlot + 1) : random() % 200;
    };
    const auto seed = [](Rank from, int channel, std::uint64_t i) {
      return i * 64 + static_cast<std::uint64_t>(channel * 2 + from);
    };
    std::uint64_t sent[kChannels] = {};
    std::uint64_t received[kChannels] = {};
    std::vector<std::byte> live[kChannels][kSlots];
    end.until(
        [&] {
          bool done = true;
          for (int c = 0; c < kChannels; ++c) {
            const auto at = [c](std::uint64_t i) { return (c * kSlots + i % kSlots) * kSlot; };
            if (sent[c] < kPuts && sent[c] < end.link.arrivals(kChannels + c) + kSlots &&
                sent[c] < end.link.released(c) + kSlots) {
              auto& src = live[c][sent[c] % kSlots];
              src = pattern(size_of_put(end.rank, c, sent[c]), seed(end.rank, c, sent[c]));
              if (end.link.try_put(src, at(sent[c]), c, static_cast<std::uint32_t>(sent[c]))) {
                ++sent[c];
              }
            }
            if (received[c] < end.link.arrivals(c)) {
              const std::uint64_t i = received[c];
              const Rank peer = 1 - end.rank;
              EXPECT_EQ(end.link.tag(c, i), i);
              EXPECT_TRUE(end.matches(at(i), pattern(size_of_put(peer, c, i), seed(peer, c, i))))
                  << "put " << i << " of channel " << c;
              end.signal(kChannels + c, 0);
              ++received[c];
            }
            done = done && sent[c] == kPuts && received[c] == kPuts;
          }
          end.advance();
          return done && end.link.progress();
        },
        "random traffic");
    end.meet();
  });
}

TEST_P(LinkTest, WhatIsWrittenThroughThePeersMappingIsPublishedByASignal) {
  run_both(GetParam(), {.region_bytes = 64 * kKiB}, [](End& end) {
    if (end.link.peer_region().empty()) return;  // not this transport
    ASSERT_EQ(end.link.peer_region().size(), 64 * kKiB);
    for (std::uint64_t i = 0; i < 200; ++i) {
      const auto mine = pattern(64 * kKiB, 2 * i + end.rank);
      std::copy(mine.begin(), mine.end(), end.link.peer_region().begin());
      end.signal(0, 0);
      end.await(0, 2 * i + 1);
      EXPECT_TRUE(end.matches(0, pattern(64 * kKiB, 2 * i + 1 - end.rank)));
      end.signal(0, 0);  // read
      end.await(0, 2 * i + 2);
    }
    end.meet();
  });
}

/// Waits for arrival `count` as the executor does, asleep or awake.
void await_asleep(End& end, ChannelId channel, std::uint64_t count, bool asleep) {
  for (int i = 1; end.link.arrivals(channel) < count; ++i) {
    if (i % 64 == 0) ::sched_yield();
    if (asleep) {
      end.transport.prepare_to_sleep();
      if (end.advance(); end.link.arrivals(channel) < count) {
        std::vector<pollfd> fds;
        end.transport.append_wake_fds(fds);
        // Far longer than any wake-up: a lost one ends the test.
        ASSERT_GT(::poll(fds.data(), fds.size(), 20'000), 0) << "slept through arrival " << count;
      }
      end.transport.woke();
    }
    end.advance();
  }
}

TEST_P(LinkTest, NoWakeUpIsEverLost) {
  // Shared memory has a protocol of its own, with moments to get wrong; tcp has the kernel's. On a
  // machine that is busy otherwise every sleep may take milliseconds, so there is an end to it.
  const std::uint64_t rounds = GetParam().transport == "shm" ? 100'000 : 10'000;
  const auto enough = Clock::now() + 10s;
  constexpr std::uint32_t kLast = 1;
  run_both(GetParam(), {.region_bytes = 64 * kKiB}, [&](End& end) {
    std::mt19937_64 random(static_cast<std::uint64_t>(end.rank) + 11);
    const auto block = pattern(4096, 1);
    std::uint32_t tag = 0;
    for (std::uint64_t i = 1; tag != kLast; ++i) {
      // Now and then a little late, so that the other one really sleeps, or is just about to.
      for (std::uint64_t spin = random() % 512; spin > 0; --spin) asm volatile("");
      const std::size_t size = random() % 8 == 0 ? block.size() : random() % 64;
      if (end.rank == 0) {
        tag = i == rounds || Clock::now() > enough ? kLast : 0;
        end.put(std::span(block).first(size), 0, 0, tag);
      }
      await_asleep(end, 0, i, random() % 2 == 0);
      if (::testing::Test::HasFatalFailure()) return;
      if (end.rank == 1) {
        tag = end.link.tag(0, i - 1);
        end.put(std::span(block).first(size), 0, 0, tag);
      }
    }
    end.flush();
    end.meet();
  });
}

// A sender that sleeps because the peer's ring is full wakes when there is room again.
TEST_P(LinkTest, ASenderHeldBackIsWokenWhenThereIsRoom) {
  run_both(GetParam(), {.region_bytes = 64 * kKiB, .max_outstanding = 4}, [&](End& end) {
    const auto block = pattern(64 * kKiB, 1);
    const std::uint64_t total = fewer(GetParam(), 3200);
    if (end.rank == 1) {
      for (std::uint64_t i = 0; i < total; i += 100) {
        std::this_thread::sleep_for(1ms);
        end.await(0, i + 100);
      }
      end.meet();
      return;
    }
    for (std::uint64_t made = 0; made < total;) {
      end.advance();
      if (end.link.try_put(block, 0, 0, 0)) {
        ++made;
        continue;
      }
      end.transport.prepare_to_sleep();
      end.advance();
      if (end.link.try_put(block, 0, 0, 0)) {
        ++made;
      } else {
        std::vector<pollfd> fds;
        end.transport.append_wake_fds(fds);
        ASSERT_GT(::poll(fds.data(), fds.size(), 20'000), 0) << "slept for ever at put " << made;
      }
      end.transport.woke();
    }
    end.flush();
    end.meet();
  });
}

TEST_P(LinkTest, APutOutsideTheRegionIsOurOwnDefectAndAborts) {
  if (!GetParam().processes) GTEST_SKIP() << "the process that aborts must not be this one";
  const struct {
    std::size_t size, offset;
    ChannelId channel;
  } bad[] = {{65, 0, 0}, {1, 64, 0}, {64, 1, 0}, {8, SIZE_MAX - 3, 0},
             {0, 65, 0}, {0, 0, 1},  {0, 0, -1}};
  for (const auto& put : bad) {
    const int status = run_ends(
        GetParam(), {.region_bytes = 64},
        [](End& end) {
          char byte = 0;
          EXPECT_EQ(::send(end.side_channel, "m", 1, MSG_NOSIGNAL), 1);  // connected
          EXPECT_EQ(::recv(end.side_channel, &byte, 1, 0), 0);           // it has ended
        },
        [&](End& end) {
          char byte = 0;
          ASSERT_EQ(::recv(end.side_channel, &byte, 1, 0), 1);
          ::close(STDERR_FILENO);
          const std::vector<std::byte> src(put.size);
          static_cast<void>(end.link.try_put(src, put.offset, put.channel, 0));
        });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT)
        << put.size << " bytes at " << put.offset << " on channel " << put.channel;
  }
}

TEST_P(LinkTest, EndsMayConnectInEitherOrderAndFarApart) {
  for (const Rank late : {0, 1}) {
    const Way& way = GetParam();
    const LinkConfig config{.region_bytes = 4 * kKiB};
    run_both(way, config, [&](End& end) {
      // The role gets a link already; make a second pair of transports and be late with those.
      const auto transport = make_transport(way.transport, context_for(way, config, end.rank));
      const auto address = swap_blobs(end.side_channel, transport->address());
      if (end.rank == late) std::this_thread::sleep_for(200ms);
      const auto link = transport->connect(1 - end.rank, address);
      End second{end.rank, *transport, *link, end.side_channel};
      const auto mine = pattern(100, end.rank);
      second.put(mine, 0, 0, 1);
      second.await(0, 1);
      EXPECT_TRUE(second.matches(0, pattern(100, 1 - end.rank)));
      second.flush();
      second.meet();
    });
  }
}

// One rank is done, and leaves, while the other still reads what it sent and answers.
TEST_P(LinkTest, APeerThatLeavesInOrderHarmsNobody) {
  run_both(GetParam(), {.region_bytes = 64 * kKiB}, [](End& end) {
    end.meet();
    if (end.rank == 0) {
      const auto bytes = pattern(3000, 4);
      for (std::uint32_t i = 0; i < 20; ++i) end.put(bytes, i * 3000, 0, i);
      end.flush();
      return;
    }
    end.await(0, 1);
    std::this_thread::sleep_for(100ms);
    end.await(0, 20);
    for (std::uint32_t i = 0; i < 20; ++i) {
      EXPECT_EQ(end.link.tag(0, i), i);
      EXPECT_TRUE(end.matches(i * 3000, pattern(3000, 4)));
      end.signal(0, i);  // a credit that nobody waits for any more
    }
    end.flush();
    for (int i = 0; i < 100; ++i) end.advance();
  });
}

TEST_P(LinkTest, APeerThatDiesCrashesNobody) {
  if (!GetParam().processes) GTEST_SKIP() << "a thread cannot die alone";
  const int status = run_ends(
      GetParam(), {.region_bytes = 256 * kKiB},
      [&](End& end) {
        const auto block = pattern(200 * kKiB, 1);
        end.await(0, 1);
        const auto noticed_by = Clock::now() + 1s;
        bool noticed = false;
        try {
          while (Clock::now() < noticed_by) {
            static_cast<void>(end.link.try_put(block, 0, 0, 0));
            static_cast<void>(end.link.arrivals(0));
            end.transport.prepare_to_sleep();
            end.transport.woke();
            end.advance();
          }
        } catch (const LinkError& error) {
          noticed = true;
          EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
        }
        // Shared memory stays; the control plane notices for it.
        EXPECT_EQ(noticed, GetParam().transport != "shm");
        if (noticed) {
          EXPECT_THROW(static_cast<void>(end.link.progress()), LinkError) << "forgot its failure";
          EXPECT_THROW(static_cast<void>(end.link.try_put(block, 0, 0, 0)), LinkError);
          EXPECT_EQ(end.link.arrivals(0), 1u);
        }
      },
      [](End& end) {
        const auto bytes = pattern(9, 9);
        end.put(bytes, 0, 0, 0);
        end.flush();
        std::this_thread::sleep_for(50ms);
        ::raise(SIGKILL);
      });
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

TEST_P(LinkTest, NothingIsLeftBehind) {
  const std::size_t fds = entries_of("/proc/self/fd");
  const std::size_t files = entries_of("/dev/shm");
  for (int i = 0; i < 5; ++i) {
    run_both(GetParam(), {.region_bytes = 1 << 20, .num_channels = 4}, [&](End& end) {
      const auto bytes = pattern(100'000, 1);
      end.put(bytes, 0, 3, 0);
      end.await(3, 1);
      end.flush();
      EXPECT_EQ(entries_of("/dev/shm"), files);
      end.meet();
    });
    EXPECT_EQ(entries_of("/proc/self/fd"), fds) << "run " << i;
  }
  EXPECT_EQ(entries_of("/dev/shm"), files);
}

/// Over all adapters side by side, and from one adapter to another.
void add_rdma(std::vector<Way>& ways, bool processes, const std::string& suffix) {
  if (why_no_rdma({})) return;
  ways.push_back({"rdma", "", processes, "rdma" + suffix});
  std::vector<std::string> adapters;
  std::error_code error;
  for (std::filesystem::directory_iterator it("/sys/class/infiniband", error), last;
       !error && it != last; it.increment(error)) {
    adapters.push_back("=" + it->path().filename().string());
  }
  std::sort(adapters.begin(), adapters.end());
  if (adapters.size() < 2) return;
  ways.push_back({"rdma", "", processes, "rdma1" + suffix, {{adapters[0], adapters[1]}}});
}

std::vector<Way> ways() {
  std::vector<Way> ways;
  for (const bool processes : {false, true}) {
    const std::string suffix = processes ? "_processes" : "_threads";
    for (const TransportFactory& factory : transports()) {
      const std::string name(factory.name);
      if (name == "rdma") {
        add_rdma(ways, processes, suffix);
        continue;
      }
      if (name != "tcp") {
        ways.push_back({name, "", processes, name + suffix});
        if (name == "shm") ways.push_back(kernel_way(processes));
        continue;
      }
      for (Way& way : tcp_ways(processes)) ways.push_back(std::move(way));
      // So many that a sleeper does not poll each.
      ways.push_back({.transport = name,
                      .interface_name = "127.0.0.1",
                      .processes = processes,
                      .name = "tcp_sockets" + suffix,
                      .tcp_sockets = 8});
    }
  }
  return ways;
}

INSTANTIATE_TEST_SUITE_P(Transports, LinkTest, ::testing::ValuesIn(ways()),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace chorus::testing
