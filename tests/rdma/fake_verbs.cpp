// The functions of libibverbs, in front of adapters that are not there.
#include "rdma/fake_verbs.hpp"

#include <arpa/inet.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "rdma/fake_fabric.hpp"

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
  if (reinterpret_cast<Device*>(device)->adapter.closed) {
    errno = ENOENT;  // as libibverbs, whatever the cause
    return nullptr;
  }
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
FAKE ibv_mr* ibv_reg_dmabuf_mr(ibv_pd* pd, std::uint64_t offset, std::size_t bytes,
                               std::uint64_t address, int descriptor, int access) {
  const std::lock_guard lock(world().mutex);
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const Adapter& adapter = world().contexts.at(pd->context)->device->adapter;
  struct stat file {};
  int error = 0;
  if (adapter.refuses_dmabufs) {
    error = EOPNOTSUPP;
  } else if (::fstat(descriptor, &file) != 0) {
    error = EBADF;
  } else if (offset % page != address % page || bytes == 0 ||
             offset + bytes > static_cast<std::uint64_t>(file.st_size)) {
    error = EINVAL;
  }
  const std::uint64_t before = offset % page;
  void* mapped = MAP_FAILED;
  if (error == 0) {
    mapped = ::mmap(nullptr, before + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor,
                    static_cast<off_t>(offset - before));
    error = mapped == MAP_FAILED ? errno : 0;
  }
  if (error != 0) {
    errno = error;
    return nullptr;
  }
  ++world().calls.registrations;
  ++world().calls.dmabufs;
  auto* made = new Memory;
  made->mr.addr = reinterpret_cast<void*>(address);
  made->mr.length = bytes;
  made->mr.lkey = made->mr.rkey = world().next++;
  made->access = access;
  made->file = file_at(reinterpret_cast<std::uint64_t>(mapped));
  made->dmabuf = static_cast<std::byte*>(mapped) + before;
  made->mapped = before + bytes;
  world().memory[made->mr.rkey] = made;
  ++world().objects;
  return &made->mr;
}
FAKE int ibv_dereg_mr(ibv_mr* mr) {
  const std::lock_guard lock(world().mutex);
  world().memory.erase(mr->rkey);
  auto* made = reinterpret_cast<Memory*>(mr);
  if (made->dmabuf != nullptr) {
    ::munmap(made->dmabuf - (made->mapped - mr->length), made->mapped);
  }
  delete made;
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
  if (device.adapter.refuses_pairs) {
    errno = ENOMEM;
    return nullptr;
  }
  if (attr->cap.max_inline_data > static_cast<std::uint32_t>(device.adapter.max_inline)) {
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
