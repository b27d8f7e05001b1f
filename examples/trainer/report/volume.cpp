#include "report/volume.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "model/params.hpp"
#include "schedule.hpp"
#include "trainer.hpp"

namespace trainer {
namespace {

using Bytes = std::uint64_t;

Bytes padded(Bytes count, Bytes ranks) { return (count + ranks - 1) / ranks * ranks; }

/// Sent by one rank of d: an all_reduce of m bytes; an all_gather or reduce_scatter over m bytes.
Bytes reduced(Bytes m, Bytes d) { return 2 * m * (d - 1) / d; }
Bytes scattered(Bytes m, Bytes d) { return m / d * (d - 1); }

/// Elements of one rank's segments.
struct Sizes {
  Bytes layer, experts, tokens, positions, final, output;
  Bytes layer_partial, gate;
};

Sizes sizes_of(const Config& config) {
  const Model& m = config.model;
  const auto t = static_cast<Bytes>(config.layout.tp);
  const auto h = static_cast<Bytes>(m.width);
  const auto f = static_cast<Bytes>(m.f());
  const auto experts = static_cast<Bytes>(m.experts);
  Sizes s{};
  const Bytes attention = (4 * h * h + 3 * h) / t + h;
  const Bytes feed_forward = (2 * f * h + f) / t + h;
  s.layer_partial = 4 * h;
  s.gate = experts * h;
  s.layer = attention + 4 * h + (experts > 0 ? s.gate : feed_forward);
  s.experts = experts / static_cast<Bytes>(config.layout.ep) * feed_forward;
  s.tokens = s.output = static_cast<Bytes>(m.vocab) * h / t;
  s.positions = static_cast<Bytes>(m.context) * h;
  s.final = 2 * h;
  return s;
}

/// One rank's share of the model.
struct Share {
  Bytes layers = 0;
  bool first = false, last = false;
  Bytes sends_ahead = 0, sends_back = 0;  ///< chunks with a successor, with a predecessor
};

Share share_of(const Config& config, int stage) {
  const Layout& l = config.layout;
  const std::vector<int> sizes = partition_of(config.model, l);
  Share share;
  for (int c = stage; c < l.chunks(); c += l.pp) {
    share.layers += static_cast<Bytes>(sizes[static_cast<std::size_t>(c)]);
    share.first |= c == 0;
    share.last |= c == l.chunks() - 1;
    share.sends_ahead += c + 1 < l.chunks() ? 1 : 0;
    share.sends_back += c > 0 ? 1 : 0;
  }
  return share;
}

Bytes neighbors_of(Average average, int replicas) {
  using chorus::neighbor::Graph;
  if (average == Average::local) return 0;
  const Graph graph = average == Average::ring   ? Graph::ring
                      : average == Average::grid ? Graph::grid
                                                 : Graph::exponential;
  return chorus::neighbor::mixing_row(graph, replicas, 0).size() - 1;
}

/// Bytes to reduce one segment of `count` elements over d replicas, and to gather what ZeRO-1 and 2
/// updated.
Bytes replicas(const Config& config, Bytes count, Bytes d, Bytes size) {
  const Layout& l = config.layout;
  if (const auto compressor = make_compressor(config.training)) {
    const Bytes length = compressor->varies() ? sizeof(std::uint64_t) : 0;
    return (d - 1) * (compressor->bytes(padded(count, d)) + length);  // at most, where they vary
  }
  const Bytes p = padded(count, d) * size;
  const Training& t = config.training;
  if (t.average != Average::gradients) {
    const Bytes near = neighbors_of(t.average, l.dp) * p;
    const auto every = static_cast<Bytes>(t.global_every);
    return every == 0 ? near : ((every - 1) * near + reduced(p, d)) / every;
  }
  const auto m = static_cast<Bytes>(l.micro_batches);
  const Bytes packed = (d - 1) * chorus::compress::Nearest8().bytes(padded(count, d) / d);
  switch (l.zero) {
    case 0:
      return reduced(p, d);
    case 1:
      return 2 * scattered(p, d);
    case 2:
      return scattered(p, d) + m * (l.quantize_gradients ? packed : scattered(p, d));
    default:
      if (!l.quantize_gradients) return m * scattered(p, d);
      return l.secondary > 0 ? 0 : m * packed;
  }
}

/// Bytes to gather the values of one segment under ZeRO-3.
Bytes gathered(const Config& config, Bytes count, Bytes d, Bytes size) {
  const Bytes all = padded(count, d);
  return config.layout.quantize_weights ? (d - 1) * chorus::compress::Nearest8().bytes(all / d)
                                        : scattered(all * size, d);
}

/// The same between the replicas of a node, and from node to node.
struct NodeBytes {
  Bytes in_node = 0, across = 0;
};
NodeBytes node_bytes(const Config& config, Bytes count) {
  const Layout& l = config.layout;
  const auto d = static_cast<Bytes>(l.dp);
  const auto g = static_cast<Bytes>(l.secondary);
  const auto m = static_cast<Bytes>(l.micro_batches);
  if (g == 0) return {};
  const Bytes all = padded(count, d);
  const Bytes packed = l.quantize_gradients ? chorus::compress::Nearest8().bytes(all / d) : 0;
  return {m * (g - 1) * (d / g) * packed, m * (d / g - 1) * packed};
}

/// How often ZeRO-3 gathers the values of a layer in a step, over all layers of a rank: a pass
/// finds there what the passes before left in the two buffers, of which the one goes that was used
/// longer ago (Store::acquire).
Bytes gathers_of_layers(const Config& config, int stage) {
  const Layout& l = config.layout;
  const std::vector<int> sizes = partition_of(config.model, l);
  constexpr int kNone = -1;
  int older = kNone;
  int newer = kNone;
  Bytes gathers = 0;
  const auto use = [&](int layer) {
    if (layer == newer) return;
    gathers += layer == older ? 0 : 1;
    older = std::exchange(newer, layer);
  };
  const std::vector<Order> orders = pipeline_order(l);
  for (const Work& work : orders[static_cast<std::size_t>(stage)]) {
    if (work.pass == Pass::weights && l.recompute == Recompute::none) continue;
    const int chunk = work.chunk * l.pp + stage;
    const int layers = sizes[static_cast<std::size_t>(chunk)];
    const int begin = std::accumulate(sizes.begin(), sizes.begin() + chunk, 0);
    for (int i = 0; i < layers; ++i) {
      use(begin + (work.pass == Pass::forward ? i : layers - 1 - i));
    }
  }
  return gathers;
}

/// Of a layer per micro-batch.
Bytes forward_passes(const Layout& l) {
  if (l.recompute != Recompute::full) return 1;
  return l.pipeline == Pipeline::zero_bubble ? 3 : 2;
}

/// Calls of all_gather or reduce_scatter per micro-batch, of which an all_reduce is two.
Bytes tensor_calls(const Layout& l, const Share& share) {
  const Bytes forwards = forward_passes(l);
  if (l.sequence_parallel) {
    // Forward 2 + 2; backward 4 + 2, of which two gather the inputs of weight gradients anew.
    return share.layers * (forwards * 4 + 6) + (share.first ? 2 : 0) + (share.last ? 2 : 0);
  }
  return 2 * (share.layers * (forwards * 2 + 2) + (share.first ? 1 : 0) + (share.last ? 1 : 0));
}

Bytes tensor_bytes(const Config& config, const Share& share, Bytes size) {
  if (config.layout.halves) {
    Config half = config.half();
    half.layout.halves = false;
    return tensor_bytes(half, share, size);
  }
  const Layout& l = config.layout;
  const auto t = static_cast<Bytes>(l.tp);
  if (t == 1) return 0;
  const Bytes n = static_cast<Bytes>(config.training.batch) * config.model.context;
  const Bytes activations = n * static_cast<Bytes>(config.model.width) * size;
  const Bytes calls = tensor_calls(l, share);
  Bytes loss = 0;
  for (Bytes begin = 0; share.last && begin < n; begin += 256) {
    const Bytes rows = std::min<Bytes>(256, n - begin) * size;
    loss += reduced(rows, t) + reduced(2 * rows, t);
  }
  return static_cast<Bytes>(l.micro_batches) * (calls * scattered(activations, t) + loss);
}

/// Gradients of which every tensor-parallel rank has a part: the parts that this rank updates.
Bytes partial_bytes(const Config& config, const Share& share, const Sizes& s, const Place& place,
                    Bytes size) {
  const Layout& l = config.layout;
  if (l.tp == 1) return 0;
  const auto d = static_cast<Bytes>(l.dp);
  // Elements of [from, from + count) in this rank's shard of a segment of `all`.
  const auto mine = [&](Bytes from, Bytes count, Bytes all) {
    const Bytes shard = l.zero > 0 ? padded(all, d) / d : padded(all, d);
    const Bytes begin = l.zero > 0 ? shard * static_cast<Bytes>(place.dp) : 0;
    const Bytes first = std::max(from, begin);
    const Bytes last = std::min(from + count, begin + shard);
    return first < last ? last - first : 0;
  };
  const auto h = static_cast<Bytes>(config.model.width);
  const auto t = static_cast<Bytes>(l.tp);
  Bytes elements = 0;
  if (l.sequence_parallel) {
    const Bytes second = 2 * h + (4 * h * h + 3 * h) / t + h;
    elements += share.layers * (mine(0, 2 * h, s.layer) + mine(second, 2 * h, s.layer));
    if (share.first) elements += mine(0, s.positions, s.positions);
    if (share.last) elements += mine(0, s.final, s.final);
  }
  if (config.model.experts > 0) elements += share.layers * mine(s.layer - s.gate, s.gate, s.layer);
  return reduced(elements * size, t);
}

}  // namespace

Volume predicted_volume(const Config& whole, int rank, std::size_t element_bytes) {
  const Config config = whole.of_replica(place_of(whole.layout, rank).dp);
  const Layout& l = config.layout;
  const Bytes size = element_bytes;
  const Sizes s = sizes_of(config);
  const Place place = place_of(l, rank);
  const Share share = share_of(config, place.pp);
  const auto d = static_cast<Bytes>(l.dp);
  const auto m = static_cast<Bytes>(l.micro_batches);
  const bool one_matrix = config.model.tied && l.pp == 1;
  const Bytes layer_gathers = l.zero == 3 ? gathers_of_layers(config, place.pp) : 0;
  const auto at = [](Axis axis) { return static_cast<std::size_t>(axis); };
  Volume volume{};
  if (d > 1) {
    const auto add = [&](Bytes segments, Bytes count, Bytes gathers) {
      volume[at(Axis::data)] += segments * replicas(config, count, d, size);
      const NodeBytes nodes = node_bytes(config, count);
      volume[at(Axis::node)] += segments * nodes.in_node;
      volume[at(Axis::across)] += segments * nodes.across;
      if (l.zero < 3) return;
      // Only a step's first gathering leaves the node.
      const Bytes far = l.secondary > 0 ? segments : gathers;
      volume[at(Axis::data)] += far * gathered(config, count, d, size);
      if (far == gathers) return;
      volume[at(Axis::node)] +=
          (gathers - far) * scattered(padded(count, d) * size, static_cast<Bytes>(l.secondary));
    };
    // The ends have buffers of their own.
    const Bytes first = share.first ? 1 : 0;
    const Bytes last = share.last ? 1 : 0;
    const Bytes output = one_matrix ? 0 : last;
    add(share.layers, s.layer, layer_gathers);
    add(first, s.tokens, first);
    add(first, s.positions, first);
    add(last, s.final, last);
    add(output, s.output, output);
  }
  const Bytes twins = d / static_cast<Bytes>(l.ep);
  if (config.model.experts > 0 && twins > 1) {
    volume[at(Axis::expert_data)] =
        share.layers * replicas(config, s.experts, twins, size) +
        (l.zero == 3 ? layer_gathers * gathered(config, s.experts, twins, size) : 0);
  }
  if (config.training.compression == Compression::power) {
    // Matrices' shapes decide: the rank's own segments know them.
    volume[at(Axis::data)] = volume[at(Axis::expert_data)] = 0;
    const Trainer<float> imagined(config, rank);
    for (const auto& segment : imagined.store().segments()) {
      const auto [first, second] = imagined.store().power_counts(*segment);
      const auto ranks = static_cast<Bytes>(segment->group->size());
      volume[at(segment->expert ? Axis::expert_data : Axis::data)] +=
          reduced(first * size, ranks) + reduced(second * size, ranks);
    }
  }
  volume[at(Axis::tensor)] =
      tensor_bytes(config, share, size) + partial_bytes(config, share, s, place, size);
  const Bytes rows = static_cast<Bytes>(config.training.batch) * config.model.context /
                     static_cast<Bytes>(l.sequence_parallel ? l.tp : 1);
  if (l.pp > 1) {
    volume[at(Axis::pipeline)] = m * (share.sends_ahead + share.sends_back) * rows *
                                 static_cast<Bytes>(config.model.width) * size;
  }
  if (config.model.tied && l.pp > 1 && (share.first || share.last)) {
    volume[at(Axis::tie)] = reduced(padded(s.tokens, d) / (l.zero > 0 ? d : Bytes{1}) * size, 2);
  }
  if (l.ep > 1) {
    volume[at(Axis::expert)] = (l.halves ? Bytes{2} : Bytes{1}) * m * share.layers *
                               forward_passes(l) * static_cast<Bytes>(config.model.experts / l.ep) *
                               4 * static_cast<Bytes>(l.ep - 1);
  }
  if (l.world_size() > 1) {
    volume[at(Axis::world)] = reduced(4 * sizeof(double), static_cast<Bytes>(l.world_size()));
  }
  return volume;
}

Volume predicted_messages(const Config& config, int rank) {
  const Layout& l = config.layout;
  const Share share = share_of(config, place_of(l, rank).pp);
  const auto m = static_cast<Bytes>(l.micro_batches);
  const Bytes halves = l.halves ? 2 : 1;
  const auto at = [](Axis axis) { return static_cast<std::size_t>(axis); };
  // By rings: d − 1 messages of an all_gather or reduce_scatter over d ranks.
  const Volume bytes = predicted_volume(config, rank, sizeof(float));
  const Training& t = config.training;
  const bool values = t.average != Average::gradients;
  const int stage = place_of(l, rank).pp;
  const Bytes layer_gathers = l.zero == 3 ? gathers_of_layers(config, stage) : 0;
  const auto compressor = make_compressor(t);
  const auto segments = [&](Bytes count, Axis axis) -> Bytes {
    // Compressed: one all_gather each, after one of lengths where those vary, or PowerSGD's two
    // all_reduces.
    if (t.compression == Compression::power) return 4 * count;
    if (compressor) return compressor->varies() ? 2 * count : count;
    switch (l.zero) {
      case 0:
        return 2 * (bytes[at(axis)] / 2 / std::max<Bytes>(l.bucket_bytes, 1) + 1);
      case 1:
        return 2 * count;
      case 2:
        return (m + 1) * count;
      default:
        if (l.secondary == 0) return m * count + layer_gathers + (count - share.layers);
        return count + (l.quantize_gradients ? 0 : m * count);
    }
  };
  Volume messages{};
  const Bytes ends = (share.first ? 2 : 0) + (share.last ? 2 : 0);
  const auto d = static_cast<Bytes>(l.dp);
  const auto twins = static_cast<Bytes>(l.dp / l.ep);
  const Bytes all = share.layers + ends;
  if (d > 1 && !values) messages[at(Axis::data)] = (d - 1) * segments(all, Axis::data);
  if (d > 1 && values) {
    const Bytes near = neighbors_of(t.average, l.dp);
    const auto every = static_cast<Bytes>(t.global_every);
    messages[at(Axis::data)] =
        every == 0 ? near * all : ((every - 1) * near + 2 * (d - 1)) * all / every;
  }
  if (l.secondary > 0) {
    const auto g = static_cast<Bytes>(l.secondary);
    const Bytes reduced_in_node = l.quantize_gradients ? m : 0;
    messages[at(Axis::node)] = (layer_gathers - share.layers + reduced_in_node * all) * (g - 1);
    messages[at(Axis::across)] = reduced_in_node * (d / g - 1) * all;
  }
  if (config.model.experts > 0 && twins > 1) {
    messages[at(Axis::expert_data)] = (twins - 1) * segments(share.layers, Axis::expert_data);
  }
  if (l.tp > 1) {
    messages[at(Axis::tensor)] = halves * m * static_cast<Bytes>(l.tp - 1) * tensor_calls(l, share);
  }
  messages[at(Axis::pipeline)] = m * (share.sends_ahead + share.sends_back);
  if (l.ep > 1) {
    // The counts, then rows there and back, each in parts.
    const auto parts = static_cast<Bytes>(std::min(l.expert_chunks, config.model.experts / l.ep));
    messages[at(Axis::expert)] = halves * m * share.layers *
                                 ((1 + 2 * parts) * forward_passes(l) + 2 * parts) *
                                 static_cast<Bytes>(l.ep - 1);
  }
  return messages;
}

std::uint64_t parameters(const Model& model) {
  Config whole;
  whole.model = model;
  const Sizes s = sizes_of(whole);
  return static_cast<Bytes>(model.layers) * (s.layer + s.experts) + s.tokens + s.positions +
         s.final + (model.tied ? 0 : s.output);
}

double parameters_by_equation_1(const Model& m) {
  const double h = m.width;
  return 2.0 * m.vocab * h + double(m.context) * h + m.layers * (12 * h * h + 8 * h) + 2 * h;
}

double flops_per_token(const Model& m) {
  const double h = m.width;
  const double visited = m.experts > 0 ? m.top_k : 1;
  const double gate = m.experts > 0 ? h * m.experts : 0;
  const double matrices = m.layers * (4 * h * h + visited * 2 * h * m.f() + gate) + h * m.vocab;
  return 6 * matrices + 12.0 * m.layers * m.context * h;
}

}  // namespace trainer
