#include "transports/rdma/verbs.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>
#include <optional>

namespace chorus {
namespace {

struct Library {
  Verbs verbs{};
  std::string why_not;
};

Library open_library() {
  Library library;
  void* const handle = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    library.why_not = "libibverbs.so.1 is not installed";
    return library;
  }
  // Old names of the same functions with another layout of their structures live on beside the new
  // ones; asked for without a version, either may be found.
  const auto find = [&](const char* name, auto& function, const char* version = "IBVERBS_1.1") {
    void* found = ::dlvsym(handle, name, version);
    if (found == nullptr) found = ::dlsym(handle, name);
    if (found == nullptr && library.why_not.empty()) {
      library.why_not = fmt::format("libibverbs.so.1 is too old: it has no {}", name);
    }
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
  };
  Verbs& v = library.verbs;
  find("ibv_get_device_list", v.get_device_list);
  find("ibv_free_device_list", v.free_device_list);
  find("ibv_get_device_name", v.get_device_name);
  find("ibv_open_device", v.open_device);
  find("ibv_close_device", v.close_device);
  find("ibv_query_device", v.query_device);
  find("ibv_query_port", v.query_port);
  find("_ibv_query_gid_ex", v.query_gid_ex, "IBVERBS_1.11");
  find("ibv_get_async_event", v.get_async_event);
  find("ibv_ack_async_event", v.ack_async_event);
  find("ibv_alloc_pd", v.alloc_pd);
  find("ibv_dealloc_pd", v.dealloc_pd);
  find("ibv_reg_mr", v.register_memory);
  find("ibv_dereg_mr", v.deregister_memory);
  v.register_dmabuf = reinterpret_cast<decltype(v.register_dmabuf)>(
      ::dlsym(handle, "ibv_reg_dmabuf_mr"));  // optional
  find("ibv_create_comp_channel", v.create_comp_channel, "IBVERBS_1.0");
  find("ibv_destroy_comp_channel", v.destroy_comp_channel, "IBVERBS_1.0");
  find("ibv_create_cq", v.create_cq);
  find("ibv_destroy_cq", v.destroy_cq);
  find("ibv_get_cq_event", v.get_cq_event);
  find("ibv_ack_cq_events", v.ack_cq_events);
  find("ibv_create_qp", v.create_qp);
  find("ibv_modify_qp", v.modify_qp);
  find("ibv_destroy_qp", v.destroy_qp);
  find("ibv_wc_status_str", v.wc_status_str);
  return library;
}

}  // namespace

const Verbs* Verbs::load(std::string& why_not) {
  static const Library library = open_library();
  why_not = library.why_not;
  return why_not.empty() ? &library.verbs : nullptr;
}

}  // namespace chorus
