// A libibverbs without hardware: reliable connections between the threads of one process, whose
// adapters fail when a test says so.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace chorus::fake {

/// What a test sets of an adapter; its one port is RoCE, with GIDs of all kinds. What is atomic it
/// sets also while others use the adapter.
struct Adapter {
  std::atomic<bool> port_active = true;
  bool infiniband = false;
  std::atomic<bool> only_roce1 = false;
  bool closed = false;          ///< to this process
  bool refuses_memory = false;  ///< registration fails as over the limit on locked memory
  bool refuses_pairs = false;
  bool refuses_dmabufs = false;  ///< as adapters without support for them
  bool delays_dmabufs = false;   ///< what is written into them comes with flush_dmabufs()
  int max_inline = 64;
  /// After so many more send requests the adapter breaks; -1: never.
  std::atomic<long> breaks_after = -1;
  /// Of the requests then under way, how many still reach the peer although this end never hears.
  std::atomic<int> unheard = 0;
  ibv_wc_status breaks_with = IBV_WC_RETRY_EXC_ERR;
};

/// Forgets everything; afterwards there are `count` adapters, fake0 and so on.
void reset(int count);
Adapter& adapter(int index);
/// An asynchronous event of every open context of an adapter.
void raise(int index, ibv_event_type event);

/// Requests that no honest caller makes (outside registered memory, beyond a queue's depth, without
/// a receive to take it), and objects that were not destroyed.
std::vector<std::string> violations();
/// Send requests over an adapter that reached their peer.
std::uint64_t delivered(int index);
/// What adapters have yet to write into dma-bufs is there afterwards.
void flush_dmabufs();
/// Memory that dma-bufs are of which are registered now, by device and inode of their files.
std::vector<std::string> registered_dmabufs();
/// Connections that were made.
std::uint64_t connected();

/// Calls of the library since reset().
struct Calls {
  std::uint64_t post_send = 0;
  std::uint64_t requests = 0;  ///< that were posted by them
  std::uint64_t signalled = 0;
  std::uint64_t post_recv = 0;
  std::uint64_t registrations = 0;
  std::uint64_t dmabufs = 0;           ///< of these
  std::uint64_t bytes_of_dmabufs = 0;  ///< that were sent out of them
  std::uint64_t bytes_to_dmabufs = 0;  ///< that were written into them
  std::uint64_t most_of_host = 0;      ///< bytes sent at once out of other memory
  std::uint64_t looks = 0;             ///< for events of the adapter: calls of the kernel
};
Calls calls();

}  // namespace chorus::fake
