#include "backend.hpp"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "accelerator.hpp"
#include "elements.hpp"
#include "work.hpp"

namespace chorus_torch {
namespace {

using Kind = chorus::Call::Kind;

// Gradients come by dozens of small tensors: below this together they travel as one.
constexpr std::size_t kFlattenBytes = 1 << 20;

std::byte* bytes_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// True where `parts` lie one behind the other in memory.
bool adjacent(const Tensors& parts) {
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous()) return false;
  }
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (bytes_of(parts[i - 1]) + parts[i - 1].nbytes() != bytes_of(parts[i])) return false;
  }
  return true;
}

std::function<void()> copying(std::vector<Copy> copies) {
  if (copies.empty()) return {};
  return [copies = std::move(copies)] {
    for (const Copy& copy : copies) std::memcpy(copy.to, copy.from, copy.bytes);
  };
}

std::function<void()> copying(std::vector<std::pair<at::Tensor, at::Tensor>> copies) {
  if (copies.empty()) return {};
  return [copies = std::move(copies)] {
    // As memory, like all that the calls write: no gradients, no inference mode.
    const at::AutoDispatchBelowADInplaceOrView guard;
    for (const auto& [to, from] : copies) to.copy_(from);
  };
}

// What is not empty, one after the other.
std::function<void()> in_turn(std::array<std::function<void()>, 3> steps) {
  const auto given = std::ranges::count_if(steps, [](const auto& step) { return bool(step); });
  if (given == 0) return {};
  if (given == 1)
    return std::move(*std::ranges::find_if(steps, [](const auto& step) { return bool(step); }));
  return [steps = std::move(steps)] {
    for (const auto& step : steps) {
      if (step) step();
    }
  };
}

// Of `flat` what `part` has, from element `first` on, in its shape.
at::Tensor piece(const at::Tensor& flat, int64_t first, const at::Tensor& part) {
  return flat.narrow(0, first, part.numel()).view(part.sizes());
}

}  // namespace

Backend::Backend(std::shared_ptr<Group> group, int rank, int size, Identity identity)
    : Base(rank, size), group_(std::move(group)), identity_(std::move(identity)) {}

Backend::~Backend() { group_->leave(); }

Backend::Plan Backend::plan(const char* name, std::chrono::milliseconds timeout, bool message) {
  if (!group_->of_this_process()) {
    throw_torch(std::string(name) + ": this process was forked from rank " + std::to_string(rank_) +
                ", whose process group stays with it: call init_process_group(\"chorus\") in the "
                "process that communicates");
  }
  Plan plan;
  plan.task = std::make_shared<Task>();
  plan.task->name = name;
  plan.task->timeout = timeout.count() > 0 ? timeout : group_->timeout();
  plan.message = message;
  return plan;
}

// `title` names the event, `collective` is what NCCL's traces, and who reads them, call it.
void Backend::show(Plan& plan, const char* title, const char* collective, const Tensors& inputs,
                   const Tensors& outputs) {
  if (!somebody_profiles()) return;
  plan.shown = std::make_unique<Shown>(Shown{.title = title,
                                             .collective = collective,
                                             .inputs = inputs,
                                             .outputs = outputs,
                                             .input_splits = {},
                                             .output_splits = {}});
}

void Backend::refuse(const Plan& plan, std::string_view why) {
  const std::string sentence = plan.task->name + ": " + std::string(why);
  if (plan.gpu) {
    group_->refuse_on_gpu(sentence);
  } else if (plan.message) {
    group_->refuse_message(sentence);
  } else {
    group_->refuse_collective(sentence);
  }
  throw_torch("rank " + std::to_string(rank_) + ": " + sentence);
}

// Notes where the plan's tensors are: all on the CPU, or all on the group's GPU.
void Backend::place(Plan& plan, const at::Tensor& tensor) {
  const Accelerator* const gpus = accelerator();
  if (tensor.is_cuda() && gpus == nullptr) {
    refuse(plan, "the tensor is on " + tensor.device().str() + ", but " + why_no_accelerator());
  }
  std::optional<int> gpu;
  if (gpus != nullptr && gpus->holds(tensor)) {
    gpu = gpus->gpu_of(tensor);
  } else if (!tensor.device().is_cpu()) {
    refuse(plan, "the tensor is on " + tensor.device().str() +
                     ", but Chorus takes tensors of the CPU and of CUDA");
  }
  if (!std::exchange(plan.placed, true)) {
    plan.gpu = gpu;
  } else if (plan.gpu != gpu) {
    const auto name = [](std::optional<int> where) {
      return where ? "GPU " + std::to_string(*where) : std::string("the CPU");
    };
    refuse(plan, "tensors of one call are on " + name(plan.gpu) + " and on " + name(gpu) +
                     ": move them to one of them");
  }
  if (const auto driver = gpu ? group_->gpus() : nullptr; driver && driver->gpu() != *gpu) {
    refuse(plan, "the tensor is on GPU " + std::to_string(*gpu) +
                     ", but this rank's GPU in this group is GPU " + std::to_string(driver->gpu()) +
                     ", that of its first call");
  }
}

// Refuses what no call can be made on.
void Backend::admit(Plan& plan, const at::Tensor& tensor, Use use) {
  place(plan, tensor);
  require(plan, tensor.layout() == at::kStrided, "the tensor is sparse; make it dense");
  if (tensor.is_contiguous()) return;
  require(plan, !plan.gpu, "the tensor is not contiguous; pass tensor.contiguous()");
  require(plan, use == Use::read || at::has_internal_overlap(tensor) != at::MemOverlap::Yes,
          "elements of the tensor share memory, as after expand(); pass tensor.clone()");
}

// A call on the whole of `tensor`, which is kept. One that is not contiguous has a stand-in.
chorus::Call Backend::call(Plan& plan, Kind kind, const at::Tensor& tensor, Use use) {
  admit(plan, tensor, use);
  plan.kept.push_back(tensor);
  at::Tensor dense = tensor;
  if (!tensor.is_contiguous()) {
    dense = flat(plan, {tensor});
    const at::Tensor shaped = dense.view(tensor.sizes());
    if (use != Use::write) plan.gathering.emplace_back(shaped, tensor);
    if (use != Use::read) plan.spreading.emplace_back(tensor, shaped);
    plan.kept.push_back(dense);
  }
  const Elements elements = elements_of(tensor.scalar_type());
  return {.kind = kind,
          .input = dense.data_ptr(),
          .output = dense.data_ptr(),
          .count = static_cast<std::size_t>(tensor.numel()) * elements.each,
          .type = elements.type};
}

chorus::Reduction Backend::reduction(const Plan& plan, const c10d::ReduceOp& op,
                                     const at::Tensor& tensor) {
  std::string why;
  const chorus::Reduction result = reduction_of(op, tensor.scalar_type(), why);
  require(plan, why.empty(), why);
  require(plan, !plan.gpu || !chorus::is_bitwise(result.op),
          "BAND, BOR and BXOR are for tensors of the CPU: move the tensor there");
  return result;
}

chorus::Rank Backend::root(const Plan& plan, int64_t rank) {
  if (rank < 0 || rank >= size_) {
    refuse(plan, "rank " + std::to_string(rank) + " does not exist: the group has " +
                     std::to_string(size_) + " ranks");
  }
  return static_cast<chorus::Rank>(rank);
}

const at::Tensor& Backend::only(const Plan& plan, const Tensors& tensors) {
  if (tensors.size() != 1) {
    refuse(plan, "needs one tensor, got " + std::to_string(tensors.size()));
  }
  return tensors.front();
}

void Backend::same_elements(const Plan& plan, const at::Tensor& a, const at::Tensor& b,
                            const char* what) {
  if (a.scalar_type() == b.scalar_type() && a.numel() == b.numel()) return;
  refuse(plan, std::string(what) + ": " + shape(a) + " and " + shape(b));
}

// A new tensor for what `parts` hold, one behind the other.
at::Tensor Backend::flat(const Plan& plan, const Tensors& parts) {
  int64_t count = 0;
  for (const at::Tensor& part : parts) count += part.numel();
  const at::Tensor& like = parts.front();
  if (plan.gpu) return accelerator()->empty(count, like);
  return at::empty({count}, like.options().requires_grad(false));
}

// One tensor over `parts`, one per rank, each like `like`: where they lie, or a new one.
at::Tensor Backend::whole(Plan& plan, const Tensors& parts, const at::Tensor& like, Use use) {
  require(plan, static_cast<int>(parts.size()) == size_,
          "needs one tensor per rank: got " + std::to_string(parts.size()) + " for " +
              std::to_string(size_) + " ranks");
  for (const at::Tensor& part : parts) {
    same_elements(plan, part, like, "tensors of the list and of this rank differ");
    admit(plan, part, use);
  }
  if (like.numel() > 0 && adjacent(parts)) {
    return at::for_blob(parts.front().data_ptr(), {size_ * like.numel()})
        .options(like.options().requires_grad(false))
        .target_device(like.device())
        .make_tensor();
  }
  return flat(plan, parts);
}

// `flat`, filled by the calls, goes into `parts` afterwards.
void Backend::scatter_into(Plan& plan, const at::Tensor& flat, const Tensors& parts) {
  plan.kept.insert(plan.kept.end(), parts.begin(), parts.end());
  if (!parts.empty() && flat.data_ptr() == parts.front().data_ptr()) return;
  plan.kept.push_back(flat);
  int64_t first = 0;
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous()) {
      plan.spreading.emplace_back(part, piece(flat, first, part));
    } else if (part.nbytes() > 0) {
      const std::byte* const from = bytes_of(flat) + first * part.itemsize();
      plan.unpacking.push_back({bytes_of(part), from, part.nbytes()});
    }
    first += part.numel();
  }
}

void Backend::gather_from(Plan& plan, const at::Tensor& flat, const Tensors& parts) {
  plan.kept.insert(plan.kept.end(), parts.begin(), parts.end());
  if (!parts.empty() && flat.data_ptr() == parts.front().data_ptr()) return;
  plan.kept.push_back(flat);
  int64_t first = 0;
  for (const at::Tensor& part : parts) {
    if (!part.is_contiguous()) {
      plan.gathering.emplace_back(piece(flat, first, part), part);
    } else if (part.nbytes() > 0) {
      std::byte* const to = bytes_of(flat) + first * part.itemsize();
      plan.packing.push_back({to, bytes_of(part), part.nbytes()});
    }
    first += part.numel();
  }
}

WorkPtr Backend::start(Plan plan, Outputs outputs) {
  if (auto* lists = std::get_if<TensorLists>(&outputs); lists != nullptr && lists->size() == 1) {
    Tensors only = std::move(lists->front());
    outputs = std::move(only);
  }
  if (!plan.shown) return start_now(plan, std::move(outputs));
  const auto shown = std::move(plan.shown);
  plan.end_of_event = begin_event(*shown, identity_);
  WorkPtr work;
  record_param_comms(*shown, identity_, rank_, size_, static_cast<std::int64_t>(sequence_) + 1,
                     plan.message, [&] { work = start_now(plan, std::move(outputs)); });
  return work;
}

WorkPtr Backend::start_now(Plan& plan, Outputs outputs) {
  WorkPtr work =
      plan.gpu ? start_on_gpu(plan, std::move(outputs)) : start_on_cpu(plan, std::move(outputs));
  if (coalescing_) coalesced_.push_back(work);
  return work;
}

WorkPtr Backend::start_on_cpu(Plan& plan, Outputs outputs) {
  Task& task = *plan.task;
  task.pack = in_turn({std::move(plan.before), copying(std::move(plan.gathering)),
                       copying(std::move(plan.packing))});
  task.unpack =
      in_turn({nullptr, copying(std::move(plan.unpacking)), copying(std::move(plan.spreading))});
  auto outcome = std::make_shared<Outcome>(std::move(outputs));
  const std::uint64_t key = Hooks::new_key();
  task.finished = [outcome, key, hooks = hooks_, kept = std::move(plan.kept),
                   end_of_event = std::move(plan.end_of_event)](const std::string& error) {
    if (end_of_event) end_of_event();
    hooks->ended(key, error);
    outcome->finish(error);
  };
  try {
    if (plan.message) {
      group_->messages().submit(plan.task);
    } else {
      ++sequence_;
      group_->collectives().submit(plan.task);
    }
  } catch (const chorus::Error& error) {
    throw_torch(error.what());
  }
  return c10::make_intrusive<TaskWork>(group_, plan.task, std::move(outcome), plan.message, key);
}

WorkPtr Backend::start_on_gpu(Plan& plan, Outputs outputs) {
  const Accelerator& gpus = *accelerator();
  const int gpu = *plan.gpu;
  auto task = std::make_shared<GpuTask>();
  task->task = plan.task;
  task->before = std::move(plan.packing);
  task->after = std::move(plan.unpacking);
  task->message = plan.message;
  task->caller = gpus.current_stream(gpu);
  task->uses = [&gpus, gpu, kept = std::move(plan.kept)](void* stream) {
    for (const at::Tensor& tensor : kept) gpus.use(tensor, gpu, stream);
  };
  try {
    const auto driver = group_->join_gpus(gpu, [&] { return gpus.new_stream(gpu); });
    if (coalescing_) driver->begin_batch();
    ++sequence_;
    driver->submit(task);
  } catch (const chorus::Error& error) {
    throw_torch(error.what());
  }
  if (plan.end_of_event) plan.end_of_event();  // of the host's part; the GPU's are its kernels
  return c10::make_intrusive<GpuWork>(group_, std::move(task), gpu, std::move(outputs));
}

WorkPtr Backend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  Plan p = plan("broadcast", options);
  show(p, "broadcast", "broadcast", tensors, tensors);
  const bool sends = options.rootRank == rank_;
  chorus::Call c = call(p, Kind::broadcast, only(p, tensors), sends ? Use::read : Use::write);
  c.peer = root(p, options.rootRank);
  p.task->calls.push_back(c);
  return start(std::move(p), tensors);
}

WorkPtr Backend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors.front().layout() == at::kSparse) {
    return allreduce_of_sparse(tensors.front(), options);
  }
  Plan p = plan("all_reduce", options);
  show(p, "all_reduce", "allreduce", tensors, tensors);
  chorus::Call c = call(p, Kind::all_reduce, only(p, tensors), Use::both);
  c.reduction = reduction(p, options.reduceOp, tensors.front());
  p.task->calls.push_back(c);
  return start(std::move(p), tensors);
}

WorkPtr Backend::allreduce_coalesced(Tensors& tensors,
                                     const c10d::AllreduceCoalescedOptions& options) {
  Plan p = plan("all_reduce_coalesced", options);
  show(p, "all_reduce", "allreduce_coalesced", tensors, tensors);
  std::size_t bytes = 0;
  bool alike = true;
  for (const at::Tensor& tensor : tensors) {
    admit(p, tensor, Use::both);
    bytes += static_cast<std::size_t>(tensor.numel()) * tensor.itemsize();
    alike = alike && tensor.scalar_type() == tensors.front().scalar_type();
  }
  Tensors parts = tensors;
  if (tensors.size() > 1 && alike && bytes <= kFlattenBytes) {
    const at::Tensor together = flat(p, tensors);
    gather_from(p, together, tensors);
    scatter_into(p, together, tensors);
    parts = {together};
  }
  for (const at::Tensor& part : parts) {
    chorus::Call c = call(p, Kind::all_reduce, part, Use::both);
    c.reduction = reduction(p, options.reduceOp, part);
    p.task->calls.push_back(c);
  }
  return start(std::move(p), tensors);
}

WorkPtr Backend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  Plan p = plan("reduce", options);
  show(p, "reduce", "reduce", tensors, tensors);
  const bool takes = options.rootRank == rank_;
  chorus::Call c = call(p, Kind::reduce, only(p, tensors), takes ? Use::both : Use::read);
  c.reduction = reduction(p, options.reduceOp, tensors.front());
  c.peer = root(p, options.rootRank);
  if (c.peer != rank_) c.output = nullptr;
  p.task->calls.push_back(c);
  return start(std::move(p), tensors);
}

}  // namespace chorus_torch
