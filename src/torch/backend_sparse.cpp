// Sums of sparse tensors, as gradients of embeddings are.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "backend.hpp"
#include "elements.hpp"

namespace chorus_torch {
namespace {

constexpr int64_t kMostDims = 16;

/// [world_size, mine.numel()]; `mine` must be contiguous.
at::Tensor gathered(chorus::Communicator& world, const at::Tensor& mine) {
  at::Tensor all = at::empty({world.world_size(), mine.numel()}, mine.options());
  const Elements elements = elements_of(mine.scalar_type());
  world
      .start({.kind = chorus::Call::Kind::all_gather,
              .input = mine.data_ptr(),
              .output = all.data_ptr(),
              .count = static_cast<std::size_t>(mine.numel()) * elements.each,
              .type = elements.type})
      .wait();
  return all;
}

/// What ranks must agree on, and how much each has: [elements, type, dimensions that are sparse,
/// dimensions, their sizes].
at::Tensor description(const at::Tensor& tensor) {
  at::Tensor result = at::zeros({4 + kMostDims}, at::kLong);
  int64_t* const words = result.data_ptr<int64_t>();
  words[0] = tensor._nnz();
  words[1] = static_cast<int64_t>(tensor.scalar_type());
  words[2] = tensor.sparse_dim();
  words[3] = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), words + 4);
  return result;
}

std::string in_words(const int64_t* description) {
  std::string text = std::string(c10::toString(static_cast<at::ScalarType>(description[1]))) + "[";
  for (int64_t d = 0; d < description[3]; ++d) {
    text += (d > 0 ? ", " : "") + std::to_string(description[4 + d]);
  }
  return text + "] with " + std::to_string(description[2]) + " sparse dimensions";
}

/// How many elements each rank has. Throws chorus::InputError, on all ranks, where they do not
/// agree.
std::vector<int64_t> shares(chorus::Communicator& world, const at::Tensor& mine) {
  const at::Tensor all = gathered(world, description(mine));
  const auto of = [&](int rank) { return all.data_ptr<int64_t>() + rank * all.size(1); };
  std::vector<int64_t> counts;
  for (int r = 0; r < world.world_size(); ++r) {
    if (!std::equal(of(0) + 1, of(0) + all.size(1), of(r) + 1)) {
      throw chorus::InputError("all_reduce of sparse tensors: rank 0 has " + in_words(of(0)) +
                               ", but rank " + std::to_string(r) + " " + in_words(of(r)));
    }
    counts.push_back(of(r)[0]);
  }
  return counts;
}

/// `part` with zeros after it, up to `count` along `dim`.
at::Tensor padded(const at::Tensor& part, int64_t dim, int64_t count) {
  std::vector<int64_t> sizes = part.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = count;
  at::Tensor result = at::zeros(sizes, part.options());
  result.narrow(dim, 0, part.size(dim)).copy_(part);
  return result;
}

/// Of each rank's padded part, what is no padding, along `dim`.
at::Tensor joined(const at::Tensor& all, const at::Tensor& like, int64_t dim,
                  const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> parts;
  for (std::size_t r = 0; r < counts.size(); ++r) {
    const at::Tensor part = all.select(0, static_cast<int64_t>(r)).view(like.sizes());
    parts.push_back(part.narrow(dim, 0, counts[r]));
  }
  return at::cat(parts, dim);
}

// Everybody gets all indices and values, and adds up the same in the same order.
void add_up(chorus::Communicator& world, const at::Tensor& tensor) {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const at::Tensor mine = tensor.coalesce();
  const std::vector<int64_t> counts = shares(world, mine);
  const int64_t most = *std::ranges::max_element(counts);
  if (most == 0) return;
  const at::Tensor indices = padded(mine._indices(), 1, most);  // [sparse dimensions, most]
  const at::Tensor values = padded(mine._values(), 0, most);
  const at::Tensor all_indices = joined(gathered(world, indices), indices, 1, counts);
  const at::Tensor all_values = joined(gathered(world, values), values, 0, counts);
  tensor.copy_(at::sparse_coo_tensor(all_indices, all_values, tensor.sizes()).coalesce());
}

}  // namespace

WorkPtr Backend::allreduce_of_sparse(const at::Tensor& tensor,
                                     const c10d::AllreduceOptions& options) {
  Plan p = plan("all_reduce", options);
  show(p, "sparse_all_reduce", "allreduce", {tensor}, {tensor});
  place(p, tensor);
  require(p, !p.gpu, "the tensor is sparse; make it dense");
  require(p, options.reduceOp == c10d::ReduceOp::SUM,
          "the tensor is sparse, and such are only added up: pass SUM, or make it dense");
  require(p, tensor.dim() <= kMostDims,
          "the sparse tensor has " + std::to_string(tensor.dim()) + " dimensions; up to " +
              std::to_string(kMostDims) + " are possible");
  p.kept.push_back(tensor);
  p.task->run = [tensor](chorus::Communicator& world) { add_up(world, tensor); };
  return start(std::move(p), Tensors{tensor});
}

}  // namespace chorus_torch
