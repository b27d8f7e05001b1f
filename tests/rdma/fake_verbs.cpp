#include "rdma/fake_verbs.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>

namespace chorus::fake {
namespace {

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
  std::string file;  // what was mapped there when it was registered, if a file
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
};

World& world() {
  static World it;
  return it;
}

void violate(const std::string& what) { world().violations.push_back(what); }

/// Device and inode of the file that is mapped at `address`; empty if none is.
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
  const auto fits = [&](const ibv_mr& mr) {
    const auto begin = reinterpret_cast<std::uint64_t>(mr.addr);
    return at >= begin && at - begin <= mr.length && bytes <= mr.length - (at - begin);
  };
  if (memory == w.memory.end() || !fits(memory->second->mr) ||
      (memory->second->access & IBV_ACCESS_REMOTE_WRITE) == 0) {
    violate("write outside the peer's memory");
    return IBV_WC_REM_ACCESS_ERR;
  }
  const bool immediate = request.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (immediate && peer.receives.empty()) {
    violate("receiver overrun");
    return IBV_WC_RNR_RETRY_EXC_ERR;
  }
  auto* to = reinterpret_cast<std::byte*>(at);
  for (int i = 0; i < request.num_sge; ++i) {
    std::memcpy(to, reinterpret_cast<const void*>(request.sg_list[i].addr),
                request.sg_list[i].length);
    to += request.sg_list[i].length;
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
    const auto begin = reinterpret_cast<std::uint64_t>(memory->second->mr.addr);
    if (piece.addr < begin || piece.addr + piece.length > begin + memory->second->mr.length) {
      violate("send from outside the registered memory");
    }
    const std::string& file = memory->second->file;
    if (!file.empty() && file_at(piece.addr) != file) {
      violate("send from memory that was mapped anew since it was registered");
    }
  }
}

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

}  // namespace

void reset(int count) {
  World& w = world();
  const std::lock_guard lock(w.mutex);
  w.devices.clear();
  for (int i = 0; i < count; ++i) {
    Device& device = w.devices.emplace_back();
    device.index = i;
    std::snprintf(device.device.name, sizeof device.device.name, "fake%d", i);
  }
  w.violations.clear();
  w.connected = 0;
  w.calls = {};
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

std::uint64_t connected() {
  const std::lock_guard lock(world().mutex);
  return world().connected;
}

Calls calls() {
  const std::lock_guard lock(world().mutex);
  return world().calls;
}

}  // namespace chorus::fake

// ---- the functions of the library ----

using namespace chorus::fake;  // NOLINT(google-build-using-namespace): its C face

// The header's macros of these names lead to other entry points.
#undef ibv_get_device_list
#undef ibv_query_port
#undef ibv_reg_mr

#define FAKE extern "C" __attribute__((visibility("default")))

FAKE ibv_device** ibv_get_device_list(int* count) {
  if (world().devices.empty()) reset(2);
  const std::lock_guard lock(world().mutex);
  auto& devices = world().devices;
  auto** list = new ibv_device*[devices.size() + 1];
  for (std::size_t i = 0; i < devices.size(); ++i) list[i] = &devices[i].device;
  list[devices.size()] = nullptr;
  *count = static_cast<int>(devices.size());
  return list;
}
FAKE void ibv_free_device_list(ibv_device** list) { delete[] list; }
FAKE const char* ibv_get_device_name(ibv_device* device) { return device->name; }

FAKE ibv_context* ibv_open_device(ibv_device* device) {
  const std::lock_guard lock(world().mutex);
  auto* made = new Context;
  made->device = reinterpret_cast<Device*>(device);
  made->context.device = device;
  made->context.ops.post_send = post_send;
  made->context.ops.post_recv = post_recv;
  made->context.ops.poll_cq = poll_cq;
  made->context.ops.req_notify_cq = req_notify_cq;
  make_pipe(made->context.async_fd, made->write_end);
  world().contexts[&made->context] = made;
  ++world().objects;
  return &made->context;
}
FAKE int ibv_close_device(ibv_context* context) {
  const std::lock_guard lock(world().mutex);
  Context* made = world().contexts.at(context);
  world().contexts.erase(context);
  ::close(made->context.async_fd);
  ::close(made->write_end);
  delete made;
  --world().objects;
  return 0;
}
FAKE int ibv_query_device(ibv_context*, ibv_device_attr* attr) {
  *attr = {};
  attr->phys_port_cnt = 1;
  attr->max_qp_wr = 16384;
  attr->max_cqe = 1 << 20;
  return 0;
}
FAKE int ibv_query_port(ibv_context* context, std::uint8_t, _compat_ibv_port_attr* old) {
  const std::lock_guard lock(world().mutex);
  auto* attr = reinterpret_cast<ibv_port_attr*>(old);
  const Adapter& adapter = world().contexts.at(context)->device->adapter;
  *attr = {};
  attr->state = adapter.port_active ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attr->active_mtu = IBV_MTU_4096;
  attr->gid_tbl_len = 4;
  attr->lid = adapter.infiniband ? 7 : 0;
  attr->active_width = 2;
  attr->active_speed = 32;
  attr->link_layer = adapter.infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return 0;
}
FAKE int _ibv_query_gid_ex(ibv_context* context, std::uint32_t, std::uint32_t index,
                           ibv_gid_entry* entry, std::uint32_t, std::size_t) {
  const std::lock_guard lock(world().mutex);
  const Device& device = *world().contexts.at(context)->device;
  if (index > 3 || (device.adapter.only_roce1 && index > 0)) return ENODATA;
  *entry = {};
  entry->gid_index = index;
  entry->gid_type = index == 0 ? IBV_GID_TYPE_ROCE_V1 : IBV_GID_TYPE_ROCE_V2;
  std::uint8_t* raw = entry->gid.raw;
  if (index == 3) {  // IPv4
    raw[10] = raw[11] = 0xff;
    raw[12] = 10;
  } else if (index == 2) {
    raw[0] = 0x20;
  } else {
    raw[0] = 0xfe;
    raw[1] = 0x80;
  }
  raw[15] = static_cast<std::uint8_t>(device.index + 1);
  return 0;
}
FAKE int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  const std::lock_guard lock(world().mutex);
  Context& made = *world().contexts.at(context);
  ++world().calls.looks;
  char byte = 0;
  if (made.events.empty() || ::read(context->async_fd, &byte, 1) != 1) {
    errno = EAGAIN;
    return -1;
  }
  *event = made.events.front();
  made.events.pop_front();
  return 0;
}
FAKE void ibv_ack_async_event(ibv_async_event*) {}

FAKE ibv_pd* ibv_alloc_pd(ibv_context* context) {
  const std::lock_guard lock(world().mutex);
  ++world().objects;
  return new ibv_pd{context, 0};
}
FAKE int ibv_dealloc_pd(ibv_pd* pd) {
  const std::lock_guard lock(world().mutex);
  --world().objects;
  delete pd;
  return 0;
}
FAKE ibv_mr* ibv_reg_mr(ibv_pd* pd, void* at, std::size_t bytes, int access) {
  const std::lock_guard lock(world().mutex);
  if (world().contexts.at(pd->context)->device->adapter.refuses_memory) {
    errno = ENOMEM;
    return nullptr;
  }
  ++world().calls.registrations;
  auto* made = new Memory;
  made->mr.addr = at;
  made->mr.length = bytes;
  made->mr.lkey = made->mr.rkey = world().next++;
  made->access = access;
  made->file = file_at(reinterpret_cast<std::uint64_t>(at));
  world().memory[made->mr.rkey] = made;
  ++world().objects;
  return &made->mr;
}
FAKE int ibv_dereg_mr(ibv_mr* mr) {
  const std::lock_guard lock(world().mutex);
  world().memory.erase(mr->rkey);
  delete reinterpret_cast<Memory*>(mr);
  --world().objects;
  return 0;
}
FAKE ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  const std::lock_guard lock(world().mutex);
  auto* made = new Channel;
  made->channel.context = context;
  make_pipe(made->channel.fd, made->write_end);
  ++world().objects;
  return &made->channel;
}
FAKE int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  const std::lock_guard lock(world().mutex);
  auto* made = reinterpret_cast<Channel*>(channel);
  ::close(made->channel.fd);
  ::close(made->write_end);
  delete made;
  --world().objects;
  return 0;
}
FAKE ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user, ibv_comp_channel* channel,
                           int) {
  const std::lock_guard lock(world().mutex);
  auto* made = new Queue;
  made->cq.context = context;
  made->cq.cqe = entries;
  made->cq.cq_context = user;
  made->channel = reinterpret_cast<Channel*>(channel);
  ++world().objects;
  return &made->cq;
}
FAKE int ibv_destroy_cq(ibv_cq* cq) {
  const std::lock_guard lock(world().mutex);
  auto* made = reinterpret_cast<Queue*>(cq);
  std::erase(made->channel->events, made);
  delete made;
  --world().objects;
  return 0;
}
FAKE int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** user) {
  const std::lock_guard lock(world().mutex);
  auto* made = reinterpret_cast<Channel*>(channel);
  char byte = 0;
  while (::read(made->channel.fd, &byte, 1) == 1) {
    if (made->events.empty()) continue;  // of a queue that is gone
    *cq = &made->events.front()->cq;
    *user = (*cq)->cq_context;
    made->events.pop_front();
    return 0;
  }
  errno = EAGAIN;
  return -1;
}
FAKE void ibv_ack_cq_events(ibv_cq*, unsigned) {}

FAKE ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attr) {
  const std::lock_guard lock(world().mutex);
  Device& device = *world().contexts.at(pd->context)->device;
  if (device.adapter.refuses_pairs ||
      attr->cap.max_inline_data > static_cast<std::uint32_t>(device.adapter.max_inline)) {
    errno = EINVAL;
    return nullptr;
  }
  auto* made = new Pair;
  made->device = &device;
  made->depth = attr->cap.max_send_wr;
  made->receive_depth = attr->cap.max_recv_wr;
  made->inline_bytes = attr->cap.max_inline_data;
  made->qp.context = pd->context;
  made->qp.pd = pd;
  made->qp.send_cq = attr->send_cq;
  made->qp.recv_cq = attr->recv_cq;
  made->qp.qp_num = world().next++;
  made->qp.state = IBV_QPS_RESET;
  made->qp.qp_type = attr->qp_type;
  world().pairs[made->qp.qp_num] = made;
  ++world().objects;
  return &made->qp;
}
FAKE int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attr, int mask) {
  const std::lock_guard lock(world().mutex);
  auto& pair = *reinterpret_cast<Pair*>(qp);
  if ((mask & IBV_QP_STATE) == 0) return EINVAL;
  if (attr->qp_state == IBV_QPS_ERR) {
    to_error(pair);
    return 0;
  }
  if (attr->qp_state == IBV_QPS_RTR) pair.peer = attr->dest_qp_num;
  if (attr->qp_state == IBV_QPS_RTS) ++world().connected;
  qp->state = attr->qp_state;
  return 0;
}
FAKE int ibv_destroy_qp(ibv_qp* qp) {
  const std::lock_guard lock(world().mutex);
  world().pairs.erase(qp->qp_num);
  delete reinterpret_cast<Pair*>(qp);
  --world().objects;
  return 0;
}
FAKE const char* ibv_wc_status_str(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_RETRY_EXC_ERR:
      return "transport retry counter exceeded";
    case IBV_WC_REM_ACCESS_ERR:
      return "remote access error";
    case IBV_WC_WR_FLUSH_ERR:
      return "Work Request Flushed Error";
    default:
      return "another error";
  }
}
