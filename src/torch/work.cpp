#include "work.hpp"

#include <ATen/core/ivalue_inl.h>
#include <c10/util/Exception.h>

#include "accelerator.hpp"

namespace chorus_torch {

std::exception_ptr torch_error(const std::string& sentence) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<std::uint32_t>(__LINE__)};
#if TORCH_VERSION_MAJOR >= 2
  return std::make_exception_ptr(c10::DistBackendError(here, sentence));
#else
  return std::make_exception_ptr(c10::Error(here, sentence));
#endif
}

void throw_torch(const std::string& sentence) { std::rethrow_exception(torch_error(sentence)); }

c10::IValue value_of(const Outputs& outputs) {
  return std::visit([](const auto& tensors) { return c10::IValue(tensors); }, outputs);
}

c10::TypePtr type_of(const Outputs& outputs) {
  const auto list = c10::ListType::create(c10::TensorType::get());
  return outputs.index() == 0 ? list : c10::ListType::create(list);
}

std::vector<at::Tensor> tensors_of(const Outputs& outputs) {
  if (outputs.index() == 0) return std::get<0>(outputs);
  const auto& lists = std::get<1>(outputs);
  return lists.empty() ? std::vector<at::Tensor>{} : lists.front();
}

c10::intrusive_ptr<c10::ivalue::Future> Outcome::future() {
  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(type_of(outputs_));
    ended = ended_;
  }
  if (ended) complete(*future_);
  return future_;
}

void Outcome::finish(const std::string& error) {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    error_ = error;
    if (!future_) return;
  }
  complete(*future_);
}

// Without the lock: what waits for a future runs now, on this thread.
void Outcome::complete(c10::ivalue::Future& future) {
  if (error_.empty()) {
    future.markCompleted(value_of(outputs_));
  } else {
    future.setError(torch_error(error_));
  }
}

bool TaskWork::isCompleted() {
  if (task_->done) return true;
  // torch's flight recorder asks once of each call, which the thread that waits shall run.
  if (!asked_.exchange(true)) return false;
  if (message_) {
    group_->messages().kick();
  } else {
    group_->collectives().kick();
  }
  return task_->done;
}

std::exception_ptr TaskWork::exception() const {
  return task_->done && !task_->error.empty() ? torch_error(task_->error) : nullptr;
}

bool TaskWork::wait(std::chrono::milliseconds timeout) {
  if (!group_->of_this_process()) {
    throw_torch(task_->name + ": this process was forked from the one that waits for it");
  }
  if (timeout.count() < 0) timeout = kNoTimeout;
  if (message_) {
    group_->messages().wait(task_, timeout);
  } else {
    group_->collectives().wait(task_, timeout);
  }
  if (!task_->error.empty()) throw_torch(task_->error);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> TaskWork::getFuture() {
  task_->want_future();
  auto future = outcome_->future();
  if (!message_) group_->collectives().kick();
  return future;
}

// Of the group as far as it is on GPUs; nothing any more once it was left.
std::string GpuWork::failure() const {
  const auto driver = group_->gpus();
  return driver ? driver->failure() : std::string();
}

std::shared_ptr<const chorus::DeviceMark> GpuWork::end() {
  if (!group_->of_this_process()) {
    throw_torch(task_->task->name + ": this process was forked from the one that waits for it");
  }
  const auto driver = group_->gpus();
  try {
    if (driver) return driver->end_of(*task_);
  } catch (const chorus::Error& error) {
    throw_torch(error.what());
  }
  if (!task_->end) throw_torch(task_->task->name + ": the process group has been destroyed");
  return task_->end;
}

bool GpuWork::isCompleted() { return !failure().empty() || end()->passed(); }

bool GpuWork::isSuccess() const { return task_->end && task_->end->passed() && failure().empty(); }

std::exception_ptr GpuWork::exception() const {
  const std::string why = failure();
  return why.empty() ? nullptr : torch_error(why);
}

bool GpuWork::wait(std::chrono::milliseconds timeout) {
  const auto mark = end();
  if (timeout.count() > 0 && !mark->wait_for(timeout)) {
    const std::string why = task_->task->name + ": not complete after the " +
                            std::to_string(timeout.count()) + " ms that wait() was given";
    group_->abort(why);
    throw_torch(why);
  }
  if (const std::string why = failure(); !why.empty()) throw_torch(why);
  mark->hold(accelerator()->current_stream(gpu_));
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> GpuWork::getFuture() {
  (void)end();
  return accelerator()->future(value_of(outputs_), type_of(outputs_), gpu_, task_->stream);
}

bool JointWork::isCompleted() {
  bool all = true;
  for (const auto& part : parts_) all = part->isCompleted() && all;
  return all;
}

bool JointWork::isSuccess() const {
  for (const auto& part : parts_) {
    if (!part->isSuccess()) return false;
  }
  return true;
}

std::exception_ptr JointWork::exception() const {
  for (const auto& part : parts_) {
    if (auto error = part->exception()) return error;
  }
  return nullptr;
}

bool JointWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& part : parts_) part->wait(timeout);
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> JointWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& part : parts_) futures.push_back(part->getFuture());
  return c10::collectAll(futures);
}

}  // namespace chorus_torch
