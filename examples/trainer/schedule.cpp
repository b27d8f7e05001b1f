#include "schedule.hpp"

#include <algorithm>
#include <limits>
#include <string>

#include "chorus/error.hpp"

namespace trainer {
namespace {

Order gpipe(int micro_batches) {
  Order order;
  for (int m = 0; m < micro_batches; ++m) order.push_back({Pass::forward, 0, m});
  for (int m = 0; m < micro_batches; ++m) order.push_back({Pass::backward, 0, m});
  return order;
}

/// PipeDream-Flush (Narayanan et al., 2021); with several chunks, the interleaved form of it.
Order one_f_one_b(const Layout& layout, int rank) {
  const int pp = layout.pp;
  const int chunks = layout.virtual_stages;
  const int total = layout.micro_batches * chunks;
  // The k-th pass: pp micro-batches through chunk 0, the same through chunk 1, …, then the next.
  const auto nth = [&](int k, Pass pass) {
    const int round = k / (pp * chunks);
    const int within = k % (pp * chunks);
    const int chunk = within / pp;
    return Work{pass, pass == Pass::forward ? chunk : chunks - 1 - chunk, round * pp + within % pp};
  };
  const auto plain = [](int k, Pass pass) { return Work{pass, 0, k}; };
  const int ahead = chunks == 1 ? pp - rank - 1 : 2 * (pp - rank - 1) + (chunks - 1) * pp;
  const int warm_up = std::min(total, ahead);
  Order order;
  const auto push = [&](int k, Pass pass) {
    order.push_back(chunks == 1 ? plain(k, pass) : nth(k, pass));
  };
  for (int k = 0; k < warm_up; ++k) push(k, Pass::forward);
  for (int k = warm_up; k < total; ++k) {
    push(k, Pass::forward);
    push(k - warm_up, Pass::backward);
  }
  for (int k = total - warm_up; k < total; ++k) push(k, Pass::backward);
  return order;
}

/// ZB-H1 (Qi et al., 2024): activations as in 1F1B, and weight gradients fill what was idle. Made
/// by running all ranks in unit time: backward first, then forward while fewer than pp
/// micro-batches are alive, then a weight gradient.
std::vector<Order> zero_bubble(const Layout& layout) {
  const int pp = layout.pp;
  const int total = layout.micro_batches;
  struct State {
    int forward = 0, backward = 0, weights = 0;
  };
  std::vector<State> at(static_cast<std::size_t>(pp));
  std::vector<Order> orders(static_cast<std::size_t>(pp));
  for (bool done = false; !done;) {
    done = true;
    const std::vector<State> before = at;
    for (int r = 0; r < pp; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const State& b = before[i];
      const bool input = r == 0 || before[i - 1].forward > b.forward;
      const bool gradient =
          b.backward < b.forward && (r == pp - 1 || before[i + 1].backward > b.backward);
      if (b.forward < total && input && b.forward - b.weights < pp &&
          b.forward - b.backward < pp - r) {
        orders[i].push_back({Pass::forward, 0, at[i].forward++});
      } else if (gradient) {
        orders[i].push_back({Pass::backward, 0, at[i].backward++});
      } else if (b.weights < b.backward) {
        orders[i].push_back({Pass::weights, 0, at[i].weights++});
      }
      done = done && at[i].weights == total;
    }
  }
  return orders;
}

}  // namespace

std::vector<Order> pipeline_order(const Layout& layout) {
  if (layout.pipeline == Pipeline::zero_bubble) return zero_bubble(layout);
  std::vector<Order> orders;
  for (int rank = 0; rank < layout.pp; ++rank) {
    orders.push_back(layout.pipeline == Pipeline::gpipe ? gpipe(layout.micro_batches)
                                                        : one_f_one_b(layout, rank));
  }
  return orders;
}

int most_alive(const Order& order, int chunk) {
  const bool split =
      std::ranges::any_of(order, [](const Work& w) { return w.pass == Pass::weights; });
  const Pass last = split ? Pass::weights : Pass::backward;
  int alive = 0;
  int most = 0;
  for (const Work& work : order) {
    if (work.chunk != chunk) continue;
    if (work.pass == Pass::forward) most = std::max(most, ++alive);
    if (work.pass == last) --alive;
  }
  return most;
}

Timeline simulated(const std::vector<Order>& orders, const Layout& layout,
                   const std::vector<PassTimes>& times, double message_s) {
  const int chunks = layout.chunks();
  const auto cell = [&](int chunk, int m) {
    return static_cast<std::size_t>(chunk) * layout.micro_batches + m;
  };
  constexpr double kNever = -1;
  std::vector<double> forward(cell(chunks, 0), kNever);
  std::vector<double> backward(cell(chunks, 0), kNever);
  std::vector<std::size_t> next(orders.size());
  std::vector<double> clock(orders.size());
  double busy = 0;
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t r = 0; r < orders.size(); ++r) {
      while (next[r] < orders[r].size()) {
        const Work& w = orders[r][next[r]];
        const int chunk = w.chunk * layout.pp + static_cast<int>(r);
        const PassTimes& t = times[static_cast<std::size_t>(chunk)];
        double ready = 0;
        double length = t.weights;
        if (w.pass == Pass::forward) {
          length = t.forward;
          if (chunk > 0) ready = forward[cell(chunk - 1, w.micro_batch)];
        } else if (w.pass == Pass::backward) {
          length = t.backward;
          ready = chunk + 1 < chunks ? backward[cell(chunk + 1, w.micro_batch)]
                                     : forward[cell(chunk, w.micro_batch)];
        }
        if (ready == kNever) break;
        const bool crosses = layout.pp > 1 && w.pass != Pass::weights &&
                             (w.pass == Pass::forward ? chunk > 0 : chunk + 1 < chunks);
        clock[r] = std::max(clock[r], ready + (crosses ? message_s : 0)) + length;
        busy += length;
        if (w.pass == Pass::forward) forward[cell(chunk, w.micro_batch)] = clock[r];
        if (w.pass == Pass::backward) backward[cell(chunk, w.micro_batch)] = clock[r];
        ++next[r];
        moved = true;
      }
    }
  }
  for (std::size_t r = 0; r < orders.size(); ++r) {
    if (next[r] < orders[r].size()) {
      throw chorus::Error("pipeline rank " + std::to_string(r) + " waits for ever at pass " +
                          std::to_string(next[r]) + " of " + std::to_string(orders[r].size()));
    }
  }
  const double makespan = *std::ranges::max_element(clock);
  return {makespan, 1 - busy / (makespan * static_cast<double>(orders.size()))};
}

std::vector<int> balanced_partition(const std::vector<double>& layers, double first, double last,
                                    int chunks, const std::vector<double>& speeds) {
  const int n = static_cast<int>(layers.size());
  std::vector<double> prefix(layers.size() + 1, 0.0);
  for (std::size_t i = 0; i < layers.size(); ++i) prefix[i + 1] = prefix[i] + layers[i];
  const auto cost = [&](int begin, int end) {
    return prefix[static_cast<std::size_t>(end)] - prefix[static_cast<std::size_t>(begin)] +
           (begin == 0 ? first : 0) + (end == n ? last : 0);
  };
  // best[c][i]: the slowest chunk when the first i layers fill c chunks; cut[c][i]: where the last
  // of these begins.
  const auto width = static_cast<std::size_t>(n) + 1;
  std::vector<std::vector<double>> best(
      static_cast<std::size_t>(chunks) + 1,
      std::vector<double>(width, std::numeric_limits<double>::infinity()));
  std::vector<std::vector<int>> cut(static_cast<std::size_t>(chunks) + 1, std::vector<int>(width));
  best[0][0] = 0;
  for (int c = 1; c <= chunks; ++c) {
    const auto row = static_cast<std::size_t>(c);
    const double speed = speeds.empty() ? 1.0 : speeds[row - 1];
    for (int i = c; i <= n; ++i) {
      for (int j = c - 1; j < i; ++j) {
        const double slowest =
            std::max(best[row - 1][static_cast<std::size_t>(j)], cost(j, i) / speed);
        if (slowest < best[row][static_cast<std::size_t>(i)]) {
          best[row][static_cast<std::size_t>(i)] = slowest;
          cut[row][static_cast<std::size_t>(i)] = j;
        }
      }
    }
  }
  std::vector<int> sizes(static_cast<std::size_t>(chunks));
  for (int c = chunks, end = n; c > 0; --c) {
    const int begin = cut[static_cast<std::size_t>(c)][static_cast<std::size_t>(end)];
    sizes[static_cast<std::size_t>(c) - 1] = end - begin;
    end = begin;
  }
  return sizes;
}

std::vector<int> partition_of(const Model& model, const Layout& layout) {
  if (!layout.partition.empty()) return layout.partition;
  // Multiplications per token: a layer's matrices and causal scores, the output's logits.
  const double h = model.width;
  const double experts = model.experts > 0 ? model.top_k : 1;
  const double layer = 4 * h * h + 2 * experts * h * model.f() + h * model.context;
  return balanced_partition(std::vector<double>(static_cast<std::size_t>(model.layers), layer), 0,
                            h * model.vocab, layout.chunks());
}

}  // namespace trainer
