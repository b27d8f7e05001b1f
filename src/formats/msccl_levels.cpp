#include <algorithm>
#include <numeric>
#include <utility>

#include "formats/msccl_schedule.hpp"

namespace chorus::formats {
namespace {

/// Edges by where they begin.
class Graph {
 public:
  Graph(int count, const std::vector<Precedence>& edges)
      : begin_(static_cast<std::size_t>(count) + 1), edges_(edges.size()) {
    for (const Precedence& edge : edges) ++begin_[edge.before + 1];
    std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
    std::vector<int> next(begin_.begin(), begin_.end() - 1);
    for (const Precedence& edge : edges) edges_[next[edge.before]++] = edge;
  }

  [[nodiscard]] int size() const { return static_cast<int>(begin_.size()) - 1; }
  [[nodiscard]] int begin(int node) const { return begin_[node]; }
  [[nodiscard]] int end(int node) const { return begin_[node + 1]; }
  [[nodiscard]] const Precedence& edge(int index) const { return edges_[index]; }

 private:
  std::vector<int> begin_;
  std::vector<Precedence> edges_;
};

/// Tarjan's strongly connected components, without recursion. Components are numbered so that
/// edges lead from higher numbers to lower ones.
class Components {
 public:
  explicit Components(const Graph& graph)
      : graph_(graph), of_(graph.size(), -1), index_(graph.size(), -1), low_(graph.size()) {
    for (int node = 0; node < graph.size(); ++node) {
      if (index_[node] < 0) visit(node);
    }
  }

  [[nodiscard]] int of(int node) const { return of_[node]; }
  [[nodiscard]] int count() const { return count_; }

 private:
  void enter(int node) {
    index_[node] = low_[node] = next_++;
    stack_.push_back(node);
    path_.emplace_back(node, graph_.begin(node));
  }

  void visit(int root) {
    enter(root);
    while (!path_.empty()) {
      auto& [node, edge] = path_.back();
      if (edge < graph_.end(node)) {
        const int to = graph_.edge(edge++).after;
        if (index_[to] < 0) {
          enter(to);
        } else if (of_[to] < 0) {
          low_[node] = std::min(low_[node], index_[to]);
        }
        continue;
      }
      leave();
    }
  }

  void leave() {
    const int node = path_.back().first;
    path_.pop_back();
    if (!path_.empty()) low_[path_.back().first] = std::min(low_[path_.back().first], low_[node]);
    if (low_[node] != index_[node]) return;
    for (int member = -1; member != node;) {
      member = stack_.back();
      stack_.pop_back();
      of_[member] = count_;
    }
    ++count_;
  }

  const Graph& graph_;
  std::vector<int> of_;
  std::vector<int> index_;
  std::vector<int> low_;
  std::vector<int> stack_;
  std::vector<std::pair<int, int>> path_;
  int next_ = 0;
  int count_ = 0;
};

}  // namespace

std::optional<std::vector<int>> earliest_levels(int count, const std::vector<Precedence>& all) {
  const Graph graph(count, all);
  const Components components(graph);
  for (const Precedence& edge : all) {
    if (edge.strict && components.of(edge.before) == components.of(edge.after)) return std::nullopt;
  }
  std::vector<int> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return components.of(a) > components.of(b); });
  std::vector<int> level(components.count());
  for (const int node : order) {
    for (int i = graph.begin(node); i < graph.end(node); ++i) {
      const Precedence& edge = graph.edge(i);
      int& after = level[components.of(edge.after)];
      after = std::max(after, level[components.of(node)] + (edge.strict ? 1 : 0));
    }
  }
  std::vector<int> result(count);
  for (int node = 0; node < count; ++node) result[node] = level[components.of(node)];
  return result;
}

std::vector<Precedence> program_order(const MscclAlgo& algo, const Trace& trace, int& count) {
  // Two auxiliary nodes per step: how late what was received (sent) up to it is.
  const int messages = static_cast<int>(trace.messages.size());
  const auto received_by = [messages](int at) { return messages + 2 * at; };
  const auto sent_by = [messages](int at) { return messages + 2 * at + 1; };
  std::vector<std::vector<std::vector<int>>> position(algo.gpus.size());  // in Trace::order
  for (std::size_t rank = 0; rank < algo.gpus.size(); ++rank) {
    for (const MscclBlock& block : algo.gpus[rank].blocks) {
      position[rank].emplace_back(block.steps.size());
    }
  }
  for (std::size_t i = 0; i < trace.order.size(); ++i) {
    const StepRef& at = trace.order[i];
    position[at.rank][at.block][at.step] = static_cast<int>(i);
  }
  const auto place = [&](const StepRef& at) { return position[at.rank][at.block][at.step]; };

  std::vector<Precedence> result;
  for (std::size_t i = 0; i < trace.order.size(); ++i) {
    const StepRef& at = trace.order[i];
    const int self = static_cast<int>(i);
    const MscclStep& step = algo.gpus[at.rank].blocks[at.block].steps[at.step];
    std::vector<int> before;
    if (at.step > 0) before.push_back(position[at.rank][at.block][at.step - 1]);
    if (step.waits_block >= 0) {
      before.push_back(position[at.rank][step.waits_block][step.waits_step]);
    }
    for (const int other : before) {
      result.push_back({received_by(other), received_by(self), false});
      result.push_back({sent_by(other), sent_by(self), false});
    }
  }
  std::vector<std::vector<int>> last_sent(algo.gpus.size());  // [rank][block]: message
  for (std::size_t rank = 0; rank < algo.gpus.size(); ++rank) {
    last_sent[rank].assign(algo.gpus[rank].blocks.size(), -1);
  }
  for (int m = 0; m < messages; ++m) {
    const MessageEnds& ends = trace.messages[m];
    const int out = place(ends.sent);
    const int in = place(ends.received);
    // Sent after all that was received and sent before; the next of a threadblock in a new step.
    result.push_back({received_by(out), m, true});
    if (ends.sent.step > 0) {
      result.push_back(
          {sent_by(position[ends.sent.rank][ends.sent.block][ends.sent.step - 1]), m, false});
    }
    result.push_back({m, sent_by(out), false});
    int& last = last_sent[ends.sent.rank][ends.sent.block];
    if (last >= 0) result.push_back({last, m, true});
    last = m;
    // Received no earlier than what was received and sent before.
    result.push_back({m, received_by(in), false});
    if (ends.received.step > 0) {
      const int previous =
          position[ends.received.rank][ends.received.block][ends.received.step - 1];
      result.push_back({received_by(previous), m, false});
      result.push_back({sent_by(previous), m, false});
    }
  }
  count = messages + 2 * static_cast<int>(trace.order.size());
  return result;
}

}  // namespace chorus::formats
