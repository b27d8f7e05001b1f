// libibverbs, opened at run time: the same program runs where it is missing.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace chorus {

/// The functions of libibverbs that are not inline in its header. (Posting and polling are: they go
/// through the context that the library made.)
struct Verbs {
  ibv_device** (*get_device_list)(int*);
  void (*free_device_list)(ibv_device**);
  const char* (*get_device_name)(ibv_device*);
  ibv_context* (*open_device)(ibv_device*);
  int (*close_device)(ibv_context*);
  int (*query_device)(ibv_context*, ibv_device_attr*);
  int (*query_port)(ibv_context*, std::uint8_t, ibv_port_attr*);
  int (*query_gid_ex)(ibv_context*, std::uint32_t port, std::uint32_t index, ibv_gid_entry*,
                      std::uint32_t flags, std::size_t entry_bytes);
  int (*get_async_event)(ibv_context*, ibv_async_event*);
  void (*ack_async_event)(ibv_async_event*);
  ibv_pd* (*alloc_pd)(ibv_context*);
  int (*dealloc_pd)(ibv_pd*);
  ibv_mr* (*register_memory)(ibv_pd*, void*, std::size_t, int);
  int (*deregister_memory)(ibv_mr*);
  /// Null where the library is older than dma-bufs (rdma-core 34).
  ibv_mr* (*register_dmabuf)(ibv_pd*, std::uint64_t offset, std::size_t length,
                             std::uint64_t address, int descriptor, int access);
  ibv_comp_channel* (*create_comp_channel)(ibv_context*);
  int (*destroy_comp_channel)(ibv_comp_channel*);
  ibv_cq* (*create_cq)(ibv_context*, int, void*, ibv_comp_channel*, int);
  int (*destroy_cq)(ibv_cq*);
  int (*get_cq_event)(ibv_comp_channel*, ibv_cq**, void**);
  void (*ack_cq_events)(ibv_cq*, unsigned);
  ibv_qp* (*create_qp)(ibv_pd*, ibv_qp_init_attr*);
  int (*modify_qp)(ibv_qp*, ibv_qp_attr*, int);
  int (*destroy_qp)(ibv_qp*);
  const char* (*wc_status_str)(ibv_wc_status);

  /// The library of this process, opened at the first call and kept; null if it cannot be used,
  /// with the reason in `why_not`.
  static const Verbs* load(std::string& why_not);
};

}  // namespace chorus
