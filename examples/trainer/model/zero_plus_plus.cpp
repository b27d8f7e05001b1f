// ZeRO++ (Wang et al., 2023): values and gradients travel in 8 bits, and the values of a step cross
// nodes once.
#include "model/params.hpp"

namespace trainer {
/// The values of a segment from all replicas; after the first time in a step, from those of the
/// node.
template <class R>
void Store<R>::start_gathering(Segment<R>& s, std::uint8_t* packed) {
  if (s.fresh) {
    const std::size_t count = s.padded / static_cast<std::size_t>(groups_.node.size());
    R* const mine = s.values + count * static_cast<std::size_t>(groups_.node.rank());
    ops_.copy(mine, s.secondary, count);
    s.gathering = groups_.node.all_gather(mine, s.values, count);
    return;
  }
  if (!config_.layout.quantize_weights) {
    // In place: the shard goes to its block, the other replicas' blocks come beside it.
    ops_.copy(s.values + s.begin, s.own_values, s.shard);
    s.gathering = s.group->all_gather(s.values + s.begin, s.values, s.shard);
    return;
  }
  s.packed = packed;
  const std::size_t size = packed_bytes(s.shard);
  std::uint8_t* const mine = packed + size * static_cast<std::size_t>(s.group->rank());
  ops_.pack(mine, s.own_values, s.shard);
  s.gathering = s.group->all_gather(static_cast<const std::uint8_t*>(mine), packed, size);
}

/// What arrived becomes values: this rank's own as well, so that all replicas compute with the
/// same.
template <class R>
void Store<R>::finish_gathering(Segment<R>& s) {
  if (s.packed != nullptr) {
    const std::size_t size = packed_bytes(s.shard);
    ops_.zero(s.values, s.padded);
    for (std::size_t r = 0; r < s.padded / s.shard; ++r) {
      ops_.add_packed(s.values + r * s.shard, s.packed + r * size, s.shard);
    }
    s.packed = nullptr;
  }
  if (config_.layout.secondary == 0 || s.fresh) return;
  const std::size_t count = s.padded / static_cast<std::size_t>(groups_.node.size());
  ops_.copy(s.secondary, s.values + count * static_cast<std::size_t>(groups_.node.rank()), count);
  s.fresh = true;
}

/// Block i of the gradient goes to the replica that updates it. With nodes: to the replica of this
/// node that stands where that one does in its own.
template <class R>
Pending Store<R>::start_quantized(Segment<R>& s, Buffer& buffer) {
  const auto replicas = static_cast<std::size_t>(s.group->size());
  const std::size_t size = packed_bytes(s.shard);
  const bool hops = config_.layout.secondary > 0;
  Group& group = hops ? groups_.node : *s.group;
  // What goes nowhere lies where it would arrive.
  std::uint8_t* const sent = buffer.packed + (group.size() > 1 ? replicas * size : 0);
  const std::size_t in_node = hops ? static_cast<std::size_t>(groups_.node.size()) : replicas;
  const std::size_t nodes = replicas / in_node;
  for (std::size_t r = 0; r < replicas; ++r) {
    const std::size_t place = r % in_node * nodes + r / in_node;
    ops_.pack(sent + place * size, buffer.memory + r * s.shard, s.shard);
  }
  if (group.size() == 1) return {};
  return group.all_to_all(static_cast<const std::uint8_t*>(sent), buffer.packed, nodes * size);
}

/// Adds what came in the order of replicas; with nodes, sums of nodes travel on across them.
template <class R>
void Store<R>::finish_quantized(Segment<R>& s, Buffer& buffer) {
  const auto replicas = static_cast<std::size_t>(s.group->size());
  const std::size_t size = packed_bytes(s.shard);
  if (config_.layout.secondary == 0) {
    for (std::size_t r = 0; r < replicas; ++r) {
      ops_.add_packed(s.own_gradients, buffer.packed + r * size, s.shard);
    }
    return;
  }
  const auto in_node = static_cast<std::size_t>(groups_.node.size());
  const std::size_t nodes = replicas / in_node;
  std::uint8_t* const sent = buffer.packed + replicas * size;
  ops_.zero(node_sums_, nodes * s.shard);
  for (std::size_t node = 0; node < nodes; ++node) {
    R* const sum = node_sums_ + node * s.shard;
    for (std::size_t peer = 0; peer < in_node; ++peer) {
      ops_.add_packed(sum, buffer.packed + (peer * nodes + node) * size, s.shard);
    }
    if (nodes > 1) ops_.pack(sent + node * size, sum, s.shard);
  }
  if (nodes == 1) return ops_.add(s.own_gradients, node_sums_, s.shard);
  groups_.across.wait(
      groups_.across.all_to_all(static_cast<const std::uint8_t*>(sent), buffer.packed, size));
  for (std::size_t node = 0; node < nodes; ++node) {
    ops_.add_packed(s.own_gradients, buffer.packed + node * size, s.shard);
  }
}

template void Store<float>::start_gathering(Segment<float>&, std::uint8_t*);
template void Store<double>::start_gathering(Segment<double>&, std::uint8_t*);
template void Store<float>::finish_gathering(Segment<float>&);
template void Store<double>::finish_gathering(Segment<double>&);
template Pending Store<float>::start_quantized(Segment<float>&, Buffer&);
template Pending Store<double>::start_quantized(Segment<double>&, Buffer&);
template void Store<float>::finish_quantized(Segment<float>&, Buffer&);
template void Store<double>::finish_quantized(Segment<double>&, Buffer&);

}  // namespace trainer
