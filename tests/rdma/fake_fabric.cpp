#include "rdma/fake_fabric.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

namespace chorus::fake {

World& world() {
  static World it;
  return it;
}

namespace {

void violate(const std::string& what) { world().violations.push_back(what); }

}  // namespace

std::string file_at(std::uint64_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    char dash = 0;
    std::string rights, offset, device, inode;
    fields >> std::hex >> begin >> dash >> end >> rights >> offset >> device >> inode;
    if (address >= begin && address < end) return inode == "0" ? "" : device + " " + inode;
  }
  return "";
}

void make_pipe(int& read_end, int& write_end) {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) ends[0] = ends[1] = -1;
  read_end = ends[0];
  write_end = ends[1];
}

namespace {

void wake(int fd) { [[maybe_unused]] const auto written = ::write(fd, "e", 1); }

void complete(ibv_cq* cq, const ibv_wc& done) {
  auto* queue = reinterpret_cast<Queue*>(cq);
  if (queue->done.size() >= static_cast<std::size_t>(queue->cq.cqe)) violate("completion overrun");
  queue->done.push_back(done);
  if (!queue->armed) return;
  queue->armed = false;
  queue->channel->events.push_back(queue);
  wake(queue->channel->write_end);
}

void complete_send(Pair& pair, const ibv_send_wr& request, ibv_wc_status status) {
  if (status == IBV_WC_SUCCESS && (request.send_flags & IBV_SEND_SIGNALED) == 0) return;
  ibv_wc done{};
  done.wr_id = request.wr_id;
  done.status = status;
  done.opcode = IBV_WC_RDMA_WRITE;
  done.qp_num = pair.qp.qp_num;
  if (status != IBV_WC_SUCCESS) done.vendor_err = 0x81;
  complete(pair.qp.send_cq, done);
}

}  // namespace

void to_error(Pair& pair) {
  if (pair.qp.state == IBV_QPS_ERR) return;
  pair.qp.state = IBV_QPS_ERR;
  while (!pair.unheard.empty()) {
    complete_send(pair, pair.unheard.front(), IBV_WC_WR_FLUSH_ERR);
    pair.unheard.pop_front();
  }
  while (!pair.receives.empty()) {
    ibv_wc done{};
    done.wr_id = pair.receives.front();
    done.status = IBV_WC_WR_FLUSH_ERR;
    pair.receives.pop_front();
    complete(pair.qp.recv_cq, done);
  }
}

namespace {

/// The first request that was not heard of fails, the rest is flushed.
void give_up(Pair& pair, ibv_wc_status status) {
  if (pair.unheard.empty()) return;
  complete_send(pair, pair.unheard.front(), status);
  pair.unheard.pop_front();
  to_error(pair);
}

/// What the peer's adapter makes of a request.
ibv_wc_status deliver(Pair& pair, const ibv_send_wr& request) {
  World& w = world();
  const auto found = w.pairs.find(pair.peer);
  if (found == w.pairs.end()) return IBV_WC_RETRY_EXC_ERR;
  Pair& peer = *found->second;
  const bool listens = peer.qp.state == IBV_QPS_RTR || peer.qp.state == IBV_QPS_RTS;
  if (!listens || peer.peer != pair.qp.qp_num || !peer.device->adapter.port_active ||
      !pair.device->adapter.port_active) {
    return IBV_WC_RETRY_EXC_ERR;
  }
  std::uint32_t bytes = 0;
  for (int i = 0; i < request.num_sge; ++i) bytes += request.sg_list[i].length;
  const auto memory = w.memory.find(request.wr.rdma.rkey);
  const std::uint64_t at = request.wr.rdma.remote_addr;
  if (memory == w.memory.end() || !memory->second->holds(at, bytes) ||
      (memory->second->access & IBV_ACCESS_REMOTE_WRITE) == 0) {
    violate("write outside the peer's memory");
    return IBV_WC_REM_ACCESS_ERR;
  }
  const bool immediate = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (immediate && peer.receives.empty()) {
    violate("receiver overrun");
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  std::vector<std::byte> arriving(bytes);
  auto* to = arriving.data();
  const bool to_dmabuf = memory->second->dmabuf != nullptr;
  if (to_dmabuf) w.calls.bytes_to_dmabufs += bytes;
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& piece = request.sg_list[i];
    const auto source = w.memory.find(piece.lkey);
    const bool by_adapter = (request.send_flags & IBV_SEND_INLINE) == 0 && source != w.memory.end();
    if (by_adapter && source->second->dmabuf != nullptr) {
      w.calls.bytes_of_dmabufs += piece.length;
    } else {
      w.calls.most_of_host = std::max<std::uint64_t>(w.calls.most_of_host, piece.length);
    }
    std::memcpy(to,
                by_adapter ? source->second->find(piece.addr)
                           : reinterpret_cast<const std::byte*>(piece.addr),
                piece.length);
    to += piece.length;
  }
  if (to_dmabuf && peer.device->adapter.delays_dmabufs) {
    w.delayed.push_back({memory->first, at, std::move(arriving)});
  } else if (bytes > 0) {
    std::memcpy(memory->second->find(at), arriving.data(), bytes);
  }
  ++pair.device->delivered;
  if (!immediate) return IBV_WC_SUCCESS;
  ibv_wc done{};
  done.wr_id = peer.receives.front();
  done.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
  done.byte_len = bytes;
  done.imm_data = request.imm_data;
  done.wc_flags = IBV_WC_WITH_IMM;
  done.qp_num = peer.qp.qp_num;
  peer.receives.pop_front();
  complete(peer.qp.recv_cq, done);
  return IBV_WC_SUCCESS;
}

void check_local(const Pair& pair, const ibv_send_wr& request) {
  for (int i = 0; i < request.num_sge; ++i) {
    const ibv_sge& piece = request.sg_list[i];
    if ((request.send_flags & IBV_SEND_INLINE) != 0) {
      if (piece.length > pair.inline_bytes) violate("more inline than agreed");
      continue;
    }
    const auto memory = world().memory.find(piece.lkey);
    if (memory == world().memory.end()) {
      violate("send from memory that is not registered");
      continue;
    }
    if (!memory->second->holds(piece.addr, piece.length)) {
      violate("send from outside the registered memory");
    }
    const std::string& file = memory->second->file;
    if (memory->second->dmabuf == nullptr && !file.empty() && file_at(piece.addr) != file) {
      violate("send from memory that was mapped anew since it was registered");
    }
  }
}

}  // namespace

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) {
  const std::lock_guard lock(world().mutex);
  auto& pair = *reinterpret_cast<Pair*>(qp);
  ++world().calls.post_send;
  for (; request != nullptr; request = request->next) {
    *bad = request;
    ++world().calls.requests;
    if ((request->send_flags & IBV_SEND_SIGNALED) != 0) ++world().calls.signalled;
    if (qp->state != IBV_QPS_RTS && qp->state != IBV_QPS_ERR) return EINVAL;
    if (++pair.posted - pair.freed > pair.depth) {
      violate("send queue overrun");
      return ENOMEM;
    }
    if (qp->state == IBV_QPS_ERR) {
      complete_send(pair, *request, IBV_WC_WR_FLUSH_ERR);
      continue;
    }
    check_local(pair, *request);
    Adapter& adapter = pair.device->adapter;
    if (adapter.breaks_after > 0) --adapter.breaks_after;
    if (adapter.breaks_after == 0) {
      const bool reaches = adapter.unheard > 0;
      if (reaches) --adapter.unheard;
      if (reaches) deliver(pair, *request);
      pair.unheard.push_back(*request);
      if (!reaches) give_up(pair, adapter.breaks_with);
      continue;
    }
    const ibv_wc_status status = deliver(pair, *request);
    complete_send(pair, *request, status);
    if (status != IBV_WC_SUCCESS) to_error(pair);
  }
  return 0;
}

int post_recv(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  const std::lock_guard lock(world().mutex);
  auto& pair = *reinterpret_cast<Pair*>(qp);
  ++world().calls.post_recv;
  for (; request != nullptr; request = request->next) {
    *bad = request;
    if (pair.receives.size() >= pair.receive_depth) {
      violate("receive queue overrun");
      return ENOMEM;
    }
    pair.receives.push_back(request->wr_id);
    if (qp->state == IBV_QPS_ERR) {
      qp->state = IBV_QPS_RTS;
      to_error(pair);
    }
  }
  return 0;
}

int poll_cq(ibv_cq* cq, int most, ibv_wc* done) {
  const std::lock_guard lock(world().mutex);
  auto& queue = *reinterpret_cast<Queue*>(cq);
  // Time passes for whoever waits to hear of his requests.
  for (auto& [number, pair] : world().pairs) {
    if (pair->qp.send_cq != cq || pair->unheard.empty() || ++pair->polls_waiting < 200) continue;
    give_up(*pair, pair->device->adapter.breaks_with);
  }
  int count = 0;
  for (; count < most && !queue.done.empty(); ++count) {
    done[count] = queue.done.front();
    queue.done.pop_front();
    const auto pair = world().pairs.find(done[count].qp_num);
    if (pair != world().pairs.end() && done[count].opcode == IBV_WC_RDMA_WRITE) {
      pair->second->freed = std::max(pair->second->freed, done[count].wr_id);
    }
  }
  return count;
}

int req_notify_cq(ibv_cq* cq, int) {
  const std::lock_guard lock(world().mutex);
  reinterpret_cast<Queue*>(cq)->armed = true;
  return 0;
}

void reset(int count) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  w.devices.clear();
  for (int i = 0; i < count; ++i) {
    Device& device = w.devices.emplace_back();
    device.index = i;
    std::snprintf(device.device.name, sizeof device.device.name, "fake%d", i);
    std::snprintf(device.device.dev_name, sizeof device.device.dev_name, "uverbs_fake%d", i);
  }
  w.violations.clear();
  w.connected = 0;
  w.calls = {};
  w.delayed.clear();
  w.objects = 0;
}

Adapter& adapter(int index) { return world().devices.at(static_cast<std::size_t>(index)).adapter; }

void raise(int index, ibv_event_type type) {
  const std::lock_guard lock(world().mutex);
  for (auto& [key, context] : world().contexts) {
    if (context->device->index != index) continue;
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = 1;
    context->events.push_back(event);
    wake(context->write_end);
  }
}

std::vector<std::string> violations() {
  const std::lock_guard lock(world().mutex);
  auto found = world().violations;
  if (world().objects != 0) found.push_back("objects left behind");
  return found;
}

std::uint64_t delivered(int index) {
  const std::lock_guard lock(world().mutex);
  return world().devices.at(static_cast<std::size_t>(index)).delivered;
}

void flush_dmabufs() {
  const std::lock_guard lock(world().mutex);
  for (const auto& [key, at, bytes] : world().delayed) {
    const auto memory = world().memory.find(key);
    if (memory != world().memory.end()) {
      std::ranges::copy(bytes, memory->second->find(at));
    }
  }
  world().delayed.clear();
}

std::vector<std::string> registered_dmabufs() {
  const std::lock_guard lock(world().mutex);
  std::vector<std::string> files;
  for (const auto& [key, memory] : world().memory) {
    if (memory->dmabuf != nullptr) files.push_back(memory->file);
  }
  return files;
}

std::uint64_t connected() {
  const std::lock_guard lock(world().mutex);
  return world().connected;
}

Calls calls() {
  const std::lock_guard lock(world().mutex);
  return world().calls;
}

}  // namespace chorus::fake
