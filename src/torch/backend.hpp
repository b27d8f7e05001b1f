// torch.distributed's backend "chorus": c10d's operations as tasks of a Group.
#pragma once

#include <torch/csrc/api/include/torch/version.h>
#if TORCH_VERSION_MAJOR >= 2
#include <torch/csrc/distributed/c10d/Backend.hpp>
#else
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#endif

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chorus/communicator.hpp"
#include "group.hpp"
#include "hooks.hpp"
#include "recorded.hpp"
#include "work.hpp"

// Torch 2 asks a backend whether it has failed since a version before this one.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 8)
#define CHORUS_TORCH_HAS_ERROR_TYPE
#endif

// Its flight recorder wants to be told how calls end.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 15)
#define CHORUS_TORCH_HAS_HOOKS
#endif

namespace chorus_torch {

#if TORCH_VERSION_MAJOR >= 2
using Base = c10d::Backend;
#else
using Base = c10d::ProcessGroup;
#endif
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;

/// Tensors must be dense and, in one call, all on the CPU or all on this rank's GPU, there
/// contiguous; on the CPU those that are not are copied, around the calls. A call that is refused
/// throws on this rank at once and on the others as soon as they notice; the group then goes on
/// only if all refused.
class Backend final : public Base {
 public:
  Backend(std::shared_ptr<Group> group, int rank, int size, Identity identity);
  ~Backend() override;

  /// Meets the other ranks of the group. Throws torch's exception.
  static c10::intrusive_ptr<Base> make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, std::chrono::milliseconds timeout,
                                       Identity identity);

  const std::string getBackendName() const override { return "chorus"; }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs,
                    const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs,
                 const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs,
                  const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits,
                        const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs,
                   const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int peer, int tag) override;
  WorkPtr recv(Tensors& tensors, int peer, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void startCoalescing() override;
#if TORCH_VERSION_MAJOR >= 2
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  WorkPtr endCoalescing() override;

  // No `override` from here on: not every torch 2 asks for these.
  WorkPtr gather_into_tensor(at::Tensor& output, at::Tensor& input,
                             const c10d::GatherOptions& options);
  bool supportsCoalescing() const { return true; }
  c10::intrusive_ptr<Options> getBackendOptions();
  bool supportsSplitting() const { return true; }
  /// Of the ranks of this group those named, in that order; null for the others.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store,
                                          const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<Options>& options);
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<Options>& options,
                                          const int& rank, const int& size);
  void setTimeout(std::chrono::milliseconds timeout);
  bool supportsShrinking() const { return true; }
  /// Of this group those ranks that are not excluded, in the same order. `flags` 1: what is under
  /// way on this group fails first, on all its ranks.
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& excluded, int flags,
                                           const c10::intrusive_ptr<Options>& options);
#ifdef CHORUS_TORCH_HAS_ERROR_TYPE
  c10d::ErrorType getError() override;
#endif
#ifdef CHORUS_TORCH_HAS_HOOKS
  bool supportsAbortHooks() const override { return true; }
  void registerAbortHook(int64_t id, c10d::AbortHook hook) override;
  void unregisterAbortHook(int64_t id) override;
  bool supportsCompletionHooks() const override;
  void registerCompletionHook(int64_t id, c10d::CompletionHook hook) override;
  void unregisterCompletionHook(int64_t id) override;
#endif
  void abort();
  void shutdown() { group_->leave(); }
#else
  void endCoalescing(std::vector<WorkPtr>& requests) override;
#endif

 private:
  // A Task in the making, with the tensors that it must keep.
  struct Plan {
    std::shared_ptr<Task> task;
    Tensors kept;
    std::vector<Copy> packing, unpacking;
    // On the CPU: of tensors that are not contiguous, before packing and after unpacking.
    std::vector<std::pair<at::Tensor, at::Tensor>> gathering, spreading;  // to, from
    std::function<void()> before;  // ahead of packing, on the CPU
    bool message = false;
    bool placed = false;                     // a tensor has been looked at:
    std::optional<int> gpu = std::nullopt;   // where it is, if not on the CPU
    std::unique_ptr<Shown> shown = nullptr;  // to profilers, while there are any
    std::function<void()> end_of_event = {};
  };
  Plan plan(const char* name, std::chrono::milliseconds timeout, bool message = false);
  /// Of a collective, with what its options say, whatever this torch has in them.
  template <class Options>
  Plan plan(const char* name, const Options& options) {
    Plan plan = this->plan(name, options.timeout);
    if constexpr (requires { options.asyncOp; }) {
      plan.task->awaited = !options.asyncOp && !coalescing_;
    }
    return plan;
  }
  static void show(Plan& plan, const char* title, const char* collective, const Tensors& inputs,
                   const Tensors& outputs);
  /// `why` is looked at where the condition does not hold alone: calls are made by the thousand.
  void require(const Plan& plan, bool condition, std::string_view why) {
    if (!condition) refuse(plan, why);
  }
  [[noreturn]] void refuse(const Plan& plan, std::string_view why);
  void place(Plan& plan, const at::Tensor& tensor);
  enum class Use { read, write, both };
  void admit(Plan& plan, const at::Tensor& tensor, Use use);
  chorus::Call call(Plan& plan, chorus::Call::Kind kind, const at::Tensor& tensor, Use use);
  chorus::Reduction reduction(const Plan& plan, const c10d::ReduceOp& op, const at::Tensor& tensor);
  chorus::Rank root(const Plan& plan, int64_t rank);
  const at::Tensor& only(const Plan& plan, const Tensors& tensors);
  void same_elements(const Plan& plan, const at::Tensor& a, const at::Tensor& b, const char* what);
  static at::Tensor flat(const Plan& plan, const Tensors& parts);
  at::Tensor whole(Plan& plan, const Tensors& parts, const at::Tensor& like, Use use);
  bool uneven(const Tensors& parts, const at::Tensor& like) const;
  void add_uneven_all_gather(Plan& plan, const Tensors& outputs, const at::Tensor& input);
  void add_uneven_reduce_scatter(Plan& plan, const at::Tensor& output, const Tensors& inputs,
                                 const c10d::ReduceOp& op);
  static void scatter_into(Plan& plan, const at::Tensor& flat, const Tensors& parts);
  static void gather_from(Plan& plan, const at::Tensor& flat, const Tensors& parts);
  WorkPtr allreduce_of_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& options);
  void add_all_gather(Plan& plan, const at::Tensor& output, const at::Tensor& input);
  void add_reduce_scatter(Plan& plan, const at::Tensor& output, const at::Tensor& input,
                          const c10d::ReduceOp& op);
  WorkPtr exchange(Plan plan, const at::Tensor& output, std::vector<std::size_t> output_counts,
                   const at::Tensor& input, std::vector<std::size_t> input_counts, Tensors outputs);
  WorkPtr message(Tensors& tensors, std::optional<int> peer, int tag, bool sending);
  std::vector<WorkPtr> end_batch();
  WorkPtr start(Plan plan, Outputs outputs);
  WorkPtr start_now(Plan& plan, Outputs outputs);
  WorkPtr start_on_cpu(Plan& plan, Outputs outputs);
  WorkPtr start_on_gpu(Plan& plan, Outputs outputs);

  std::shared_ptr<Group> group_;
  Identity identity_;
  /// Calls may outlive this.
  const std::shared_ptr<Hooks> hooks_ = std::make_shared<Hooks>();
  uint64_t sequence_ = 0;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

}  // namespace chorus_torch
