// What goes from each rank to each or to one, what carries no data, and what binds calls together.
#include <numeric>
#include <utility>

#include "accelerator.hpp"
#include "backend.hpp"
#include "elements.hpp"
#include "work.hpp"

namespace chorus_torch {
namespace {

using Kind = chorus::Call::Kind;
using Counts = std::vector<std::size_t>;

Counts offsets(const Counts& counts) {
  Counts result(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), result.begin(), std::size_t{0});
  return result;
}

}  // namespace

// Counts are in elements of the tensors, one per rank.
WorkPtr Backend::exchange(Plan p, const at::Tensor& output, Counts output_counts,
                          const at::Tensor& input, Counts input_counts, Tensors outputs) {
  const auto me = static_cast<std::size_t>(rank_);
  require(p, input.scalar_type() == output.scalar_type(), "input and output differ in type");
  require(p, input_counts[me] == output_counts[me],
          "this rank sends itself " + std::to_string(input_counts[me]) + " elements but expects " +
              std::to_string(output_counts[me]));
  const std::size_t each = elements_of(input.scalar_type()).each;
  for (std::size_t& count : input_counts) count *= each;
  for (std::size_t& count : output_counts) count *= each;
  chorus::Call c = call(p, Kind::all_to_all_v, input, Use::read);
  c.output = call(p, Kind::all_to_all_v, output, Use::write).output;
  c.count = 0;
  Task::Splits& splits = p.task->splits.emplace_back();
  splits.send_offsets = offsets(input_counts);
  splits.recv_offsets = offsets(output_counts);
  splits.send_counts = std::move(input_counts);
  splits.recv_counts = std::move(output_counts);
  c.send_counts = splits.send_counts;
  c.send_offsets = splits.send_offsets;
  c.recv_counts = splits.recv_counts;
  c.recv_offsets = splits.recv_offsets;
  p.task->calls.push_back(c);
  return start(std::move(p), std::move(outputs));
}

WorkPtr Backend::alltoall_base(at::Tensor& output, at::Tensor& input,
                               std::vector<int64_t>& output_splits,
                               std::vector<int64_t>& input_splits,
                               const c10d::AllToAllOptions& options) {
  Plan p = plan("all_to_all", options);
  show(p, "all_to_all",
       output_splits.empty() && input_splits.empty() ? "all_to_all" : "all_to_allv", {input},
       {output});
  if (p.shown) {
    p.shown->input_splits = input_splits;
    p.shown->output_splits = output_splits;
  }
  if (output_splits.empty() && input_splits.empty()) {
    chorus::Call c = call(p, Kind::all_to_all, input, Use::read);
    const chorus::Call to = call(p, Kind::all_to_all, output, Use::write);
    require(p, to.count == c.count && to.type == c.type && input.numel() % size_ == 0,
            "input and output must be as large and divide by the number of ranks");
    c.output = to.output;
    c.count /= static_cast<std::size_t>(size_);
    p.task->calls.push_back(c);
    return start(std::move(p), Tensors{output});
  }
  const auto counts = [&](const at::Tensor& tensor, const std::vector<int64_t>& splits) {
    const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
    const int64_t row = rows == 0 ? 0 : tensor.numel() / rows;
    require(p, splits.empty() ? rows % size_ == 0 : static_cast<int>(splits.size()) == size_,
            "needs one split size per rank, or rows that divide by the number of ranks");
    Counts result;
    int64_t sum = 0;
    for (int r = 0; r < size_; ++r) {
      const int64_t split = splits.empty() ? rows / size_ : splits[static_cast<std::size_t>(r)];
      require(p, split >= 0, "a split size is negative");
      sum += split;
      result.push_back(static_cast<std::size_t>(split * row));
    }
    require(p, sum == rows,
            "the split sizes add up to " + std::to_string(sum) + " of " + std::to_string(rows) +
                " rows");
    return result;
  };
  Counts to = counts(output, output_splits);
  Counts from = counts(input, input_splits);
  return exchange(std::move(p), output, std::move(to), input, std::move(from), Tensors{output});
}

WorkPtr Backend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  Plan p = plan("all_to_all", options);
  show(p, "all_to_all", "all_to_all", inputs, outputs);
  require(p, static_cast<int>(outputs.size()) == size_ && static_cast<int>(inputs.size()) == size_,
          "needs one tensor per rank in both lists");
  const auto counts = [&](const Tensors& parts, Use use) {
    Counts result;
    for (const at::Tensor& part : parts) {
      admit(p, part, use);
      require(p, part.scalar_type() == parts.front().scalar_type(),
              "tensors of the list differ in type");
      result.push_back(static_cast<std::size_t>(part.numel()));
    }
    return result;
  };
  Counts to = counts(outputs, Use::write);
  Counts from = counts(inputs, Use::read);
  const at::Tensor input = flat(p, inputs);
  const at::Tensor output = flat(p, outputs);
  gather_from(p, input, inputs);
  scatter_into(p, output, outputs);
  return exchange(std::move(p), output, std::move(to), input, std::move(from), outputs);
}

// Of messages on the CPU the driver finds out which is for whom; on GPUs, where nobody could look
// in time, they match in their order.
WorkPtr Backend::message(Tensors& tensors, std::optional<int> peer, int tag, bool sending) {
  Plan p = plan(sending ? "send" : "recv", c10d::kUnsetTimeout, true);
  show(p,
       sending ? "send"
       : peer  ? "recv"
               : "recvAnySource",
       sending ? "send" : "recv", tensors, tensors);
  chorus::Call c = call(p, sending ? Kind::send : Kind::recv, only(p, tensors),
                        sending ? Use::read : Use::write);
  if (peer) {
    c.peer = root(p, *peer);
    p.task->name += (sending ? " to rank " : " from rank ") + std::to_string(*peer);
  } else {
    require(p, !p.gpu, "a tensor of a GPU is received from a rank that is named");
    p.task->name += " from any rank";
    p.task->from_anyone = true;
  }
  if (tag != 0) p.task->name += ", tag " + std::to_string(tag);
  require(p, !p.gpu || c.peer != rank_ || coalescing_,
          "a rank sends a tensor of a GPU to itself within one batch_isend_irecv()");
  p.task->tag = tag;
  p.task->calls.push_back(c);
  return start(std::move(p), tensors);
}

WorkPtr Backend::send(Tensors& tensors, int peer, int tag) {
  return message(tensors, peer, tag, true);
}

WorkPtr Backend::recv(Tensors& tensors, int peer, int tag) {
  return message(tensors, peer, tag, false);
}

WorkPtr Backend::recvAnysource(Tensors& tensors, int tag) {
  return message(tensors, std::nullopt, tag, false);
}

WorkPtr Backend::barrier(const c10d::BarrierOptions& options) {
  Plan p = plan("barrier", options);
  show(p, "barrier", "barrier", {}, {});
  p.task->calls.push_back({.kind = Kind::barrier});
  if (const auto driver = group_->gpus()) {
    // After all that this rank has given its GPU, as with NCCL.
    const int gpu = driver->gpu();
    auto here = std::make_shared<chorus::DeviceMark>(gpu, accelerator()->current_stream(gpu));
    p.before = [here] { here->wait(); };
  }
  return start(std::move(p), Tensors{});
}

void Backend::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

std::vector<WorkPtr> Backend::end_batch() {
  coalescing_ = false;
  try {
    if (const auto driver = group_->gpus()) driver->end_batch();
  } catch (const chorus::Error& error) {
    coalesced_.clear();
    throw_torch(error.what());
  }
  return std::exchange(coalesced_, {});
}

#if TORCH_VERSION_MAJOR >= 2
WorkPtr Backend::endCoalescing() { return c10::make_intrusive<JointWork>(end_batch()); }

WorkPtr Backend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllgatherOptions& options) {
  Plan p = plan("all_gather_coalesced", options);
  show(p, "all_gather", "allgather_into_tensor_coalesced", inputs, outputs);
  require(p, outputs.size() == inputs.size(), "lists of outputs and inputs differ in length");
  for (std::size_t i = 0; i < inputs.size(); ++i) add_all_gather(p, outputs[i], inputs[i]);
  return start(std::move(p), outputs);
}

WorkPtr Backend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                 const c10d::ReduceScatterOptions& options) {
  Plan p = plan("reduce_scatter_coalesced", options);
  show(p, "reduce_scatter", "reduce_scatter_tensor_coalesced", inputs, outputs);
  require(p, outputs.size() == inputs.size(), "lists of outputs and inputs differ in length");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    add_reduce_scatter(p, outputs[i], inputs[i], options.reduceOp);
  }
  return start(std::move(p), outputs);
}
#else
void Backend::endCoalescing(std::vector<WorkPtr>& requests) { requests = end_batch(); }
#endif

}  // namespace chorus_torch
