// What torch holds of an operation in progress.
#pragma once

#include <torch/csrc/api/include/torch/version.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <variant>
#include <vector>

#include "group.hpp"

namespace chorus_torch {

/// A sentence as torch's own exception: DistBackendError of torch 2, RuntimeError of 1.13.
std::exception_ptr torch_error(const std::string& sentence);
[[noreturn]] void throw_torch(const std::string& sentence);

/// What a call gives: tensors, or a list of them for each one that was given. Torch's own form of
/// it costs as much to make as a small call takes, and few ask for it.
using Outputs = std::variant<std::vector<at::Tensor>, std::vector<std::vector<at::Tensor>>>;
c10::IValue value_of(const Outputs& outputs);
c10::TypePtr type_of(const Outputs& outputs);
/// Those of the first list.
std::vector<at::Tensor> tensors_of(const Outputs& outputs);

/// The future of a task, made when somebody asks for it.
class Outcome {
 public:
  explicit Outcome(Outputs outputs) : outputs_(std::move(outputs)) {}
  [[nodiscard]] const Outputs& outputs() const { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> future();
  void finish(const std::string& error);

 private:
  void complete(c10::ivalue::Future& future);

  std::mutex mutex_;
  const Outputs outputs_;
  bool ended_ = false;
  std::string error_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class TaskWork final : public c10d::Work {
 public:
  TaskWork(std::shared_ptr<Group> group, std::shared_ptr<Task> task,
           std::shared_ptr<Outcome> outcome, bool message, std::uint64_t key)
      : group_(std::move(group)),
        task_(std::move(task)),
        outcome_(std::move(outcome)),
        message_(message),
        key_(key) {}

  /// From the second time on it makes progress, too: who asks again waits for the end.
  bool isCompleted() override;
  bool isSuccess() const override { return task_->done && task_->error.empty(); }
  std::exception_ptr exception() const override;
  int sourceRank() const override { return task_->source; }
  // No `override`: not every torch asks for it.
  uint64_t getCompletionKey() const { return key_; }  ///< of Hooks
  std::vector<at::Tensor> result() override { return tensors_of(outcome_->outputs()); }
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override { group_->abort(task_->name + " was aborted"); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::shared_ptr<Group> group_;
  std::shared_ptr<Task> task_;
  std::shared_ptr<Outcome> outcome_;
  bool message_;
  std::uint64_t key_;
  std::atomic<bool> asked_ = false;
};

/// An operation on a GPU. Waiting for it holds up the caller's current stream, not the caller.
class GpuWork final : public c10d::Work {
 public:
  GpuWork(std::shared_ptr<Group> group, std::shared_ptr<GpuTask> task, int gpu, Outputs outputs)
      : group_(std::move(group)), task_(std::move(task)), gpu_(gpu), outputs_(std::move(outputs)) {}

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<at::Tensor> result() override { return tensors_of(outputs_); }
  void synchronize() override { wait(kNoTimeout); }
  /// With a time limit it waits for the GPU, and fails the group when the limit passes.
  bool wait(std::chrono::milliseconds timeout) override;
  void abort() override { group_->abort(task_->task->name + " was aborted"); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::shared_ptr<const chorus::DeviceMark> end();
  [[nodiscard]] std::string failure() const;

  std::shared_ptr<Group> group_;
  std::shared_ptr<GpuTask> task_;
  int gpu_;
  Outputs outputs_;
};

/// Several operations that were started together.
class JointWork final : public c10d::Work {
 public:
  explicit JointWork(std::vector<c10::intrusive_ptr<c10d::Work>> parts)
      : parts_(std::move(parts)) {}
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  void synchronize() override { wait(kNoTimeout); }
  bool wait(std::chrono::milliseconds timeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
};

}  // namespace chorus_torch
