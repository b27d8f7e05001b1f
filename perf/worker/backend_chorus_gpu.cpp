// Chorus on GPU memory, by what its C API for GPUs stands on.
#include <fmt/format.h>

#include <memory>
#include <stdexcept>

#include "chorus/communicator.hpp"
#include "perf/worker/backend.hpp"
#include "perf/worker/gpu_buffers.hpp"
#include "runtime/gpu/communicator.hpp"

namespace chorus::perf {
namespace {

class ChorusGpuBackend final : public Backend {
 public:
  ChorusGpuBackend()
      : communicator_(Communicator::join()),
        gpu_(communicator_.rank()),
        device_(communicator_, gpu_.ordinal()) {}

  [[nodiscard]] int rank() const override { return communicator_.rank(); }
  [[nodiscard]] int world_size() const override { return communicator_.world_size(); }
  [[nodiscard]] std::string version() const override { return "Chorus " CHORUS_VERSION; }
  [[nodiscard]] std::string refuse(const Operation& operation) const override {
    const Benchmark& asked = benchmark(operation.kind);
    if (asked.point_to_point) return "messages are measured on host memory only";
    if (asked.reduces && is_bitwise(operation.op)) return "GPUs have no bitwise operations";
    return {};
  }

  [[nodiscard]] std::function<void()> prepare(const Operation& operation) override {
    Call call{.kind = kind_of(operation.kind)};
    if (operation.kind != Kind::barrier) {
      buffers_ = std::make_unique<GpuBuffers>(gpu_, operation, rank(), world_size());
      call.input = buffers_->operation().input;
      call.output = buffers_->operation().output;
      call.count = operation.count;
      call.type = operation.type;
      call.reduction = Reduction(operation.op);
      call.peer = operation.root;
    }
    return [this, call] {
      device_.enqueue(DeviceCall{.call = call, .stream = gpu_.stream()});
      gpu_.wait();
      if (const std::string* error = device_.error()) throw std::runtime_error(*error);
    };
  }

  void bring_buffers() override { buffers_->bring(); }
  void fetch_buffers() override { buffers_->fetch(); }

  void exchange(std::span<const Message> /*sends*/,
                std::span<const Message> /*receives*/) override {
    throw std::logic_error("messages are refused");
  }

 private:
  static Call::Kind kind_of(Kind kind) {
    switch (kind) {
      case Kind::all_reduce:
        return Call::Kind::all_reduce;
      case Kind::all_gather:
        return Call::Kind::all_gather;
      case Kind::reduce_scatter:
        return Call::Kind::reduce_scatter;
      case Kind::all_to_all:
        return Call::Kind::all_to_all;
      case Kind::broadcast:
        return Call::Kind::broadcast;
      case Kind::reduce:
        return Call::Kind::reduce;
      case Kind::gather:
        return Call::Kind::gather;
      case Kind::scatter:
        return Call::Kind::scatter;
      case Kind::barrier:
        return Call::Kind::barrier;
      default:
        throw std::logic_error("messages are refused");
    }
  }

  Communicator communicator_;
  Gpu gpu_;
  DeviceCommunicator device_;
  std::unique_ptr<GpuBuffers> buffers_;
};

}  // namespace

std::unique_ptr<Backend> make_backend(const WorkerArguments& /*arguments*/) {
  return std::make_unique<ChorusGpuBackend>();
}

}  // namespace chorus::perf
