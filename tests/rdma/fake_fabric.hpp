// What the adapters of fake_verbs.hpp are and do, for the C functions in front of them.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "rdma/fake_verbs.hpp"

namespace chorus::fake {

struct Context;
struct Queue;

struct Device {
  ibv_device device{};
  int index = 0;
  Adapter adapter;
  std::uint64_t delivered = 0;
};
struct Channel {
  ibv_comp_channel channel{};
  int write_end = -1;
  std::deque<Queue*> events;
};
struct Queue {
  ibv_cq cq{};
  Channel* channel = nullptr;
  bool armed = false;
  std::deque<ibv_wc> done;
};
struct Memory {
  ibv_mr mr{};
  int access = 0;
  std::string file;             // what was mapped there when it was registered, if a file
  std::byte* dmabuf = nullptr;  // the adapter's own way to a dma-buf
  std::size_t mapped = 0;       // bytes of it

  [[nodiscard]] bool holds(std::uint64_t at, std::uint64_t bytes) const {
    const auto begin = reinterpret_cast<std::uint64_t>(mr.addr);
    return at >= begin && at - begin <= mr.length && bytes <= mr.length - (at - begin);
  }
  /// Where the adapter finds what its user calls `at`.
  [[nodiscard]] std::byte* find(std::uint64_t at) const {
    if (dmabuf == nullptr) return reinterpret_cast<std::byte*>(at);
    return dmabuf + (at - reinterpret_cast<std::uint64_t>(mr.addr));
  }
};
struct Pair {
  ibv_qp qp{};
  Device* device = nullptr;
  std::uint32_t depth = 0, receive_depth = 0, inline_bytes = 0;
  std::uint32_t peer = 0;
  std::uint64_t posted = 0, freed = 0;
  std::deque<std::uint64_t> receives;
  std::deque<ibv_send_wr> unheard;  // reached the peer, or did not, and this end waits to hear
  int polls_waiting = 0;
};
struct Context {
  ibv_context context{};
  Device* device = nullptr;
  int write_end = -1;
  std::deque<ibv_async_event> events;
};

// One lock over everything: what is tested is the caller.
struct World {
  std::mutex mutex;
  std::deque<Device> devices;
  std::map<std::uint32_t, Pair*> pairs;
  std::map<std::uint32_t, Memory*> memory;
  std::map<ibv_context*, Context*> contexts;
  std::uint32_t next = 100;
  std::uint64_t connected = 0;
  Calls calls;
  int objects = 0;
  std::vector<std::string> violations;
  struct Delayed {
    std::uint32_t key;
    std::uint64_t at;
    std::vector<std::byte> bytes;
  };
  std::vector<Delayed> delayed;
};

[[nodiscard]] World& world();

/// Device and inode of the file that is mapped at `address`; empty if none is.
[[nodiscard]] std::string file_at(std::uint64_t address);
/// Neither end blocks; -1 if there is none to be had.
void make_pipe(int& read_end, int& write_end);
/// Flushes what the pair holds.
void to_error(Pair& pair);

// The fast path, as a context's operations.
int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad);
int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad);
int poll_cq(ibv_cq* cq, int most, ibv_wc* done);
int req_notify_cq(ibv_cq* cq, int solicited);

}  // namespace chorus::fake
