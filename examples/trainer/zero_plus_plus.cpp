// ZeRO++ (Wang et al., 2023): values and gradients travel in 8 bits, and the values of a step cross
// nodes once.
#include <type_traits>

#include "params.hpp"

namespace trainer {
namespace {

using chorus::compress::Nearest8;

template <class R>
[[noreturn]] void only_float() {
  throw chorus::InputError("values and gradients can be quantized in float32 only");
}

template <class R>
void pack(const R* values, std::size_t count, std::uint8_t* to) {
  if constexpr (std::is_same_v<R, float>) {
    const std::size_t bytes = Nearest8().bytes(count);
    Nearest8().encode({values, count}, 0, std::as_writable_bytes(std::span(to, bytes)));
  } else {
    only_float<R>();
  }
}

/// sum += what was packed
template <class R>
void add_unpacked(R* sum, std::size_t count, const std::uint8_t* from) {
  if constexpr (std::is_same_v<R, float>) {
    const std::size_t bytes = Nearest8().bytes(count);
    Nearest8().add(std::as_bytes(std::span(from, bytes)), 1.0F, {sum, count});
  } else {
    only_float<R>();
  }
}

}  // namespace

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
  pack(s.own_values, s.shard, mine);
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
      add_unpacked(s.values + r * s.shard, s.shard, s.packed + r * size);
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
  std::uint8_t* const sent = buffer.packed + replicas * size;
  const bool hops = config_.layout.secondary > 0;
  const std::size_t in_node = hops ? static_cast<std::size_t>(groups_.node.size()) : replicas;
  const std::size_t nodes = replicas / in_node;
  for (std::size_t r = 0; r < replicas; ++r) {
    const std::size_t place = r % in_node * nodes + r / in_node;
    pack(buffer.memory + r * s.shard, s.shard, sent + place * size);
  }
  Group& group = hops ? groups_.node : *s.group;
  if (group.size() == 1) {
    std::copy_n(sent, replicas * size, buffer.packed);
    return {};
  }
  return group.all_to_all(static_cast<const std::uint8_t*>(sent), buffer.packed, nodes * size);
}

/// Adds what came in the order of replicas; with nodes, sums of nodes travel on across them.
template <class R>
void Store<R>::finish_quantized(Segment<R>& s, Buffer& buffer) {
  const auto replicas = static_cast<std::size_t>(s.group->size());
  const std::size_t size = packed_bytes(s.shard);
  if (config_.layout.secondary == 0) {
    for (std::size_t r = 0; r < replicas; ++r) {
      add_unpacked(s.own_gradients, s.shard, buffer.packed + r * size);
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
      add_unpacked(sum, s.shard, buffer.packed + (peer * nodes + node) * size);
    }
    if (nodes > 1) pack(static_cast<const R*>(sum), s.shard, sent + node * size);
  }
  if (nodes == 1) return ops_.add(s.own_gradients, node_sums_, s.shard);
  groups_.across.wait(
      groups_.across.all_to_all(static_cast<const std::uint8_t*>(sent), buffer.packed, size));
  for (std::size_t node = 0; node < nodes; ++node) {
    add_unpacked(s.own_gradients, s.shard, buffer.packed + node * size);
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
