// Operations whose one end has a tensor per rank: as a list, or one behind the other in one tensor.
#include <utility>

#include "backend.hpp"
#include "elements.hpp"
#include "work.hpp"

namespace chorus_torch {
namespace {

using Kind = chorus::Call::Kind;

Tensors joined(const TensorLists& lists) {
  Tensors all;
  for (const Tensors& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace

// True where the list has a tensor per rank, of different sizes, and this rank's is like `like`: of
// ranks that hold shares of different sizes all know all sizes.
bool Backend::uneven(const Tensors& parts, const at::Tensor& like) const {
  if (static_cast<int>(parts.size()) != size_) return false;
  const at::Tensor& mine = parts[static_cast<std::size_t>(rank_)];
  if (mine.numel() != like.numel() || mine.scalar_type() != like.scalar_type()) return false;
  bool differ = false;
  for (const at::Tensor& part : parts) {
    if (part.scalar_type() != like.scalar_type()) return false;
    differ = differ || part.numel() != like.numel();
  }
  return differ;
}

// A broadcast by each rank, as no rank's share has the size of another's.
void Backend::add_uneven_all_gather(Plan& p, const Tensors& outputs, const at::Tensor& input) {
  const chorus::Call mine = call(p, Kind::broadcast, input, Use::read);
  for (int r = 0; r < size_; ++r) {
    const at::Tensor& output = outputs[static_cast<std::size_t>(r)];
    chorus::Call c = call(p, Kind::broadcast, output, Use::write);
    c.peer = r;
    if (r == rank_ && mine.input != c.output && input.numel() > 0) {
      p.packing.push_back({c.output, mine.input, input.nbytes()});
    }
    p.task->calls.push_back(c);
  }
}

void Backend::add_uneven_reduce_scatter(Plan& p, const at::Tensor& output, const Tensors& inputs,
                                        const c10d::ReduceOp& op) {
  const chorus::Call mine = call(p, Kind::reduce, output, Use::write);
  for (int r = 0; r < size_; ++r) {
    chorus::Call c = call(p, Kind::reduce, inputs[static_cast<std::size_t>(r)], Use::read);
    c.output = r == rank_ ? mine.output : nullptr;
    c.peer = r;
    c.reduction = reduction(p, op, output);
    p.task->calls.push_back(c);
  }
}

void Backend::add_all_gather(Plan& p, const at::Tensor& output, const at::Tensor& input) {
  chorus::Call c = call(p, Kind::all_gather, input, Use::read);
  const chorus::Call all = call(p, Kind::all_gather, output, Use::write);
  require(p, output.scalar_type() == input.scalar_type() && output.numel() == size_ * input.numel(),
          "the output must hold the input of each rank: " + shape(output) + " for " +
              std::to_string(size_) + " times " + shape(input));
  c.output = all.output;
  p.task->calls.push_back(c);
}

WorkPtr Backend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                 const c10d::AllgatherOptions& options) {
  Plan p = plan("all_gather", options);
  show(p, "all_gather", "_allgather_base", {input}, {output});
  add_all_gather(p, output, input);
  return start(std::move(p), Tensors{output});
}

WorkPtr Backend::allgather(TensorLists& outputs, Tensors& inputs,
                           const c10d::AllgatherOptions& options) {
  Plan p = plan("all_gather", options);
  show(p, "all_gather", "all_gather", inputs, outputs.empty() ? Tensors{} : outputs.front());
  const at::Tensor& input = only(p, inputs);
  require(p, outputs.size() == 1, "needs one list of outputs");
  if (uneven(outputs.front(), input)) {
    add_uneven_all_gather(p, outputs.front(), input);
    return start(std::move(p), outputs);
  }
  const at::Tensor all = whole(p, outputs.front(), input, Use::write);
  add_all_gather(p, all, input);
  scatter_into(p, all, outputs.front());
  return start(std::move(p), outputs);
}

// outputs [world_size][inputs]
WorkPtr Backend::allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                     const c10d::AllgatherOptions& options) {
  Plan p = plan("all_gather_coalesced", options);
  show(p, "all_gather", "allgather_coalesced", inputs, joined(outputs));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    Tensors parts;
    for (const Tensors& of_rank : outputs) {
      require(p, of_rank.size() == inputs.size(), "lists of outputs and inputs differ in length");
      parts.push_back(of_rank[i]);
    }
    const at::Tensor all = whole(p, parts, inputs[i], Use::write);
    add_all_gather(p, all, inputs[i]);
    scatter_into(p, all, parts);
  }
  return start(std::move(p), outputs);
}

WorkPtr Backend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  Plan p = plan("gather", options);
  show(p, "gather", "gather", inputs, joined(outputs));
  chorus::Call c = call(p, Kind::gather, only(p, inputs), Use::read);
  c.peer = root(p, options.rootRank);
  c.output = nullptr;
  if (c.peer == rank_) {
    require(p, outputs.size() == 1, "the root needs a list of outputs");
    const at::Tensor all = whole(p, outputs.front(), inputs.front(), Use::write);
    c.output = all.data_ptr();
    p.kept.push_back(all);
    scatter_into(p, all, outputs.front());
  }
  p.task->calls.push_back(c);
  return start(std::move(p), outputs);
}

#if TORCH_VERSION_MAJOR >= 2
WorkPtr Backend::gather_into_tensor(at::Tensor& output, at::Tensor& input,
                                    const c10d::GatherOptions& options) {
  Plan p = plan("gather", options);
  show(p, "gather", "gather", {input}, {output});
  chorus::Call c = call(p, Kind::gather, input, Use::read);
  c.peer = root(p, options.rootRank);
  c.output = nullptr;
  if (c.peer == rank_) {
    require(p,
            output.scalar_type() == input.scalar_type() && output.numel() == size_ * input.numel(),
            "the root's output must hold the input of each rank: " + shape(output) + " for " +
                std::to_string(size_) + " times " + shape(input));
    c.output = call(p, Kind::gather, output, Use::write).output;
  }
  p.task->calls.push_back(c);
  return start(std::move(p), Tensors{output});
}
#endif

WorkPtr Backend::scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ScatterOptions& options) {
  Plan p = plan("scatter", options);
  show(p, "scatter", "scatter", joined(inputs), outputs);
  chorus::Call c = call(p, Kind::scatter, only(p, outputs), Use::write);
  c.peer = root(p, options.rootRank);
  c.input = nullptr;
  if (c.peer == rank_) {
    require(p, inputs.size() == 1, "the root needs a list of inputs");
    const at::Tensor all = whole(p, inputs.front(), outputs.front(), Use::read);
    c.input = all.data_ptr();
    p.kept.push_back(all);
    gather_from(p, all, inputs.front());
  }
  p.task->calls.push_back(c);
  return start(std::move(p), outputs);
}

void Backend::add_reduce_scatter(Plan& p, const at::Tensor& output, const at::Tensor& input,
                                 const c10d::ReduceOp& op) {
  chorus::Call c = call(p, Kind::reduce_scatter, output, Use::write);
  const chorus::Call all = call(p, Kind::reduce_scatter, input, Use::read);
  require(p, output.scalar_type() == input.scalar_type() && input.numel() == size_ * output.numel(),
          "the input must hold the output of each rank: " + shape(input) + " for " +
              std::to_string(size_) + " times " + shape(output));
  c.input = all.input;
  c.reduction = reduction(p, op, output);
  p.task->calls.push_back(c);
}

WorkPtr Backend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                      const c10d::ReduceScatterOptions& options) {
  Plan p = plan("reduce_scatter", options);
  show(p, "reduce_scatter", "_reduce_scatter_base", {input}, {output});
  add_reduce_scatter(p, output, input, options.reduceOp);
  return start(std::move(p), Tensors{output});
}

WorkPtr Backend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                const c10d::ReduceScatterOptions& options) {
  Plan p = plan("reduce_scatter", options);
  show(p, "reduce_scatter", "reduce_scatter", joined(inputs), outputs);
  const at::Tensor& output = only(p, outputs);
  require(p, inputs.size() == 1, "needs one list of inputs");
  if (uneven(inputs.front(), output)) {
    add_uneven_reduce_scatter(p, output, inputs.front(), options.reduceOp);
    return start(std::move(p), outputs);
  }
  const at::Tensor all = whole(p, inputs.front(), output, Use::read);
  gather_from(p, all, inputs.front());
  add_reduce_scatter(p, output, all, options.reduceOp);
  return start(std::move(p), outputs);
}

}  // namespace chorus_torch
