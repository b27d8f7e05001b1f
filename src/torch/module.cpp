// The Python module chorus_torch._C.
#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "accelerator.hpp"
#include "backend.hpp"
#include "work.hpp"

namespace {

using chorus_torch::Backend;
using chorus_torch::Base;
using chorus_torch::Group;

c10::intrusive_ptr<Base> create(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                std::chrono::milliseconds timeout, std::string address,
                                std::string backend, std::string name,
                                std::vector<std::uint64_t> global_ranks) {
  return Backend::make(store, rank, size, timeout,
                       {.backend = std::move(backend),
                        .name = std::move(name),
                        .global_ranks = std::move(global_ranks),
                        .address = std::move(address)});
}

/// Without a timeout that of the group counts.
void monitored_barrier(const c10::intrusive_ptr<Base>& backend,
                       std::optional<std::chrono::milliseconds> timeout, bool wait_all_ranks) {
  c10d::BarrierOptions options;
  options.timeout = timeout.value_or(c10d::kUnsetTimeout);
  backend->monitoredBarrier(options, wait_all_ranks);
}

void leave_all(const std::string& reason) {
  Group::leave_all(reason);
  chorus_torch::Hooks::finish();
}

/// How this process was started, for launchers whose variables torch does not know.
py::dict launch() {
  const chorus::Launch found = chorus::Launch::from_env();
  py::dict result;
  result["launcher"] = found.launcher;
  result["rank"] = found.rank;
  result["world_size"] = found.world_size;
  result["local_rank"] = found.local_rank;
  result["local_world_size"] = found.local_world_size;
  return result;
}

/// Gives `text` of rank 0 to every rank of the job that this process was launched into.
std::string from_rank_0(std::string text) {
  try {
    chorus::Communicator world = chorus::Communicator::join();
    std::uint64_t size = text.size();
    world.broadcast(std::span(&size, 1), 0);
    text.resize(size);
    auto* bytes = reinterpret_cast<std::uint8_t*>(text.data());
    world.broadcast(std::span(bytes, text.size()), 0);
    return text;
  } catch (const chorus::Error& error) {
    chorus_torch::throw_torch(error.what());
  }
}

}  // namespace

PYBIND11_MODULE(_C, module) {
  module.doc() = "Chorus as a backend of torch.distributed";
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  module.def("create", &create, py::arg("store"), py::arg("rank"), py::arg("size"),
             py::arg("timeout"), py::arg("address"), py::arg("backend"), py::arg("name"),
             py::arg("global_ranks"), unlocked);
  module.def("monitored_barrier", &monitored_barrier, unlocked);
  module.def("leave_all", &leave_all, py::arg("reason"), unlocked);
  module.def("launch", &launch);
  module.def("from_rank_0", &from_rank_0, unlocked);
  module.attr("takes_cuda") = chorus_torch::accelerator() != nullptr;
}
