#include "synth/exact/windows.hpp"

#include <fmt/format.h>
#include <z3++.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/index.hpp"
#include "chorus/error.hpp"
#include "synth/exact/watchdog.hpp"

namespace chorus::synth::exact {
namespace {

constexpr int kTicks = 100'000;               // of a window, in which the solver counts
constexpr unsigned kWorkPerWindow = 400'000;  // per question: a tenth of a second or so
constexpr double kNearEnough = 0.002;
constexpr int kMostUnanswered = 8;  // then it is hard all the way
constexpr int kMostPairs = 4000;

/// Jobs as differences between their begins.
class WindowEncoding {
 public:
  WindowEncoding(z3::context& context, const TimingWindow& window)
      : context_(context), window_(window), with_(window.jobs.size()) {
    origin_s_ = 1e300;
    for (const TimingWindow::Job& job : window.jobs) origin_s_ = std::min(origin_s_, job.begin_s);
    for (const TimingWindow::Job& job : window.jobs) origin_s_ = std::min(origin_s_, job.ready_s);
    tick_s_ = (window.end_s - origin_s_) / kTicks;
    for (std::size_t i = 0; i < window.jobs.size(); ++i) {
      begins_.push_back(context.int_const(fmt::format("b{}", i).c_str()));
      heads_.push_back(context.int_const(fmt::format("h{}", i).c_str()));
      counts_.push_back(context.int_const(fmt::format("n{}", i).c_str()));
    }
  }

  /// False if there are too many pairs.
  [[nodiscard]] bool assert_into(z3::solver& solver) {
    if (pairs() > kMostPairs) return false;
    join(solver);
    for (std::size_t j = 0; j < window_.jobs.size(); ++j) {
      const TimingWindow::Job& job = window_.jobs[j];
      solver.add(heads_[j] >= ticks(job.ready_s - origin_s_));
      for (const int before : job.after) {
        solver.add(heads_[j] - begins_[at(before)] >= ticks(window_.jobs[at(before)].length_s));
      }
    }
    order(solver);
    return true;
  }

  /// All ends, with what follows them, at most `end` ticks after the origin.
  [[nodiscard]] z3::expr ends_by(int end) const {
    z3::expr_vector all(context_);
    for (std::size_t j = 0; j < window_.jobs.size(); ++j) {
      const TimingWindow::Job& job = window_.jobs[j];
      double rest_s = job.length_s + job.tail_s;
      for (const TimingWindow::Use& use : job.uses) {
        const auto behind = window_.behind_s.find(use.resource);
        const double behind_s = behind == window_.behind_s.end() ? 0 : behind->second;
        rest_s = std::max(rest_s, use.seconds + behind_s);
      }
      all.push_back(begins_[j] <= end - ticks(rest_s));
    }
    return z3::mk_and(all);
  }

  [[nodiscard]] int ticks(double seconds) const {
    return static_cast<int>(std::ceil(seconds / tick_s_ - 1e-6));
  }
  [[nodiscard]] double origin_s() const { return origin_s_; }

  [[nodiscard]] Retimed read(const z3::model& model) const {
    Retimed result;
    for (std::size_t j = 0; j < begins_.size(); ++j) {
      result.begin_s.push_back(origin_s_ +
                               tick_s_ * model.eval(begins_[j], true).get_numeral_int());
      int with = -1;
      for (const auto& [i, literal] : with_[j]) {
        if (model.eval(literal, true).is_true()) with = i;
      }
      result.with.push_back(with);
    }
    return result;
  }

 private:
  [[nodiscard]] std::map<int, std::vector<int>> users() const {
    std::map<int, std::vector<int>> users;
    for (std::size_t j = 0; j < window_.jobs.size(); ++j) {
      for (const TimingWindow::Use& use : window_.jobs[j].uses) {
        users[use.resource].push_back(static_cast<int>(j));
      }
    }
    return users;
  }

  [[nodiscard]] int pairs() const {
    std::size_t pairs = 0;
    for (const auto& [resource, jobs] : users()) pairs += jobs.size() * (jobs.size() - 1) / 2;
    return static_cast<int>(pairs);
  }

  /// What may travel with what: chunks in ascending order on one edge whose resources take
  /// something per message, which is saved.
  void join(z3::solver& solver) {
    std::vector<z3::expr_vector> followers(window_.jobs.size(), z3::expr_vector(context_));
    for (std::size_t j = 0; j < window_.jobs.size(); ++j) {
      const TimingWindow::Job& job = window_.jobs[j];
      const bool saves = std::any_of(job.uses.begin(), job.uses.end(),
                                     [](const auto& use) { return use.message_s > 0; });
      z3::expr_vector literals(context_);
      for (std::size_t i = 0; saves && i < window_.jobs.size(); ++i) {
        if (i == j || window_.jobs[i].edge != job.edge || window_.jobs[i].chunk >= job.chunk) {
          continue;
        }
        const z3::expr with = context_.bool_const(fmt::format("w{}_{}", i, j).c_str());
        with_[j].emplace_back(static_cast<int>(i), with);
        literals.push_back(with);
        followers[i].push_back(with);
        solver.add(z3::implies(with, heads_[j] == heads_[i]));
        solver.add(z3::implies(with, counts_[j] == counts_[i] + job.chunks));
        for (const TimingWindow::Use& use : window_.jobs[i].uses) {
          solver.add(z3::implies(with, begins_[j] - begins_[i] >= ticks(use.seconds)));
        }
      }
      solver.add(counts_[j] <= kMostTogether);
      solver.add(heads_[j] <= begins_[j]);
      if (literals.empty()) {
        solver.add(heads_[j] == begins_[j] && counts_[j] == job.chunks);
      } else {
        solver.add(z3::atmost(literals, 1));
        solver.add(z3::mk_or(literals) || (heads_[j] == begins_[j] && counts_[j] == job.chunks));
      }
    }
    for (const z3::expr_vector& mine : followers) {
      if (mine.size() > 1) solver.add(z3::atmost(mine, 1));
    }
  }

  /// Of two jobs on one resource one is over before the other begins; what travels with the one
  /// before it takes nothing per message.
  void order(z3::solver& solver) {
    std::map<std::pair<int, int>, z3::expr> first;
    for (const auto& [resource, jobs] : users()) {
      for (std::size_t a = 0; a < jobs.size(); ++a) {
        for (std::size_t b = a + 1; b < jobs.size(); ++b) {
          const std::pair pair(jobs[a], jobs[b]);
          auto found = first.find(pair);
          if (found == first.end()) {
            const std::string name = fmt::format("o{}_{}", pair.first, pair.second);
            found = first.emplace(pair, context_.bool_const(name.c_str())).first;
          }
          precede(solver, found->second, resource, pair.first, pair.second);
          precede(solver, !found->second, resource, pair.second, pair.first);
        }
      }
    }
  }

  void precede(z3::solver& solver, const z3::expr& if_so, int resource, int before, int after) {
    const auto& uses = window_.jobs[at(before)].uses;
    const auto use = std::find_if(uses.begin(), uses.end(),
                                  [&](const auto& u) { return u.resource == resource; });
    const z3::expr gap = begins_[at(after)] - begins_[at(before)];
    if (with_[at(before)].empty()) {
      solver.add(z3::implies(if_so, gap >= ticks(use->seconds)));
      return;
    }
    z3::expr_vector literals(context_);
    for (const auto& [i, literal] : with_[at(before)]) literals.push_back(literal);
    const z3::expr joined = z3::mk_or(literals);
    solver.add(z3::implies(if_so && !joined, gap >= ticks(use->seconds)));
    solver.add(z3::implies(if_so && joined, gap >= ticks(use->seconds - use->message_s)));
  }

  z3::context& context_;
  const TimingWindow& window_;
  double origin_s_ = 0;
  double tick_s_ = 0;
  std::vector<z3::expr> begins_;  // by job, in ticks since the origin
  std::vector<z3::expr> heads_;   // of what it travels with: when that begins
  std::vector<z3::expr> counts_;  // chunks up to and with it
  std::vector<std::vector<std::pair<int, z3::expr>>> with_;  // by job: the one before, if so
};

}  // namespace

std::optional<Retimed> solve_window(const TimingWindow& window, const Effort& effort) {
  if (window.jobs.size() < 2) return std::nullopt;
  std::optional<Retimed> best;
  try {
    z3::context context;
    z3::solver solver(context, "QF_IDL");
    z3::params params(context);
    params.set("random_seed", static_cast<unsigned>(effort.seed));
    params.set("rlimit", kWorkPerWindow);
    solver.set(params);
    WindowEncoding encoding(context, window);
    if (!encoding.assert_into(solver)) return std::nullopt;
    const Watchdog watchdog(effort, [&] { context.interrupt(); });
    int low = encoding.ticks(window.bound_s - encoding.origin_s());
    int high = kTicks;
    int unanswered = 0;
    while (high - low > kTicks * kNearEnough && unanswered < kMostUnanswered && !effort.spent()) {
      const int middle = low + (high - low) / 2;
      solver.push();
      solver.add(encoding.ends_by(middle));
      const z3::check_result answer = solver.check();
      if (answer == z3::sat) {
        best = encoding.read(solver.get_model());
        high = middle;
      } else {
        low = middle;
        if (answer == z3::unknown) ++unanswered;
      }
      solver.pop();
    }
  } catch (const z3::exception& error) {
    if (effort.spent() || std::strstr(error.msg(), "cancel") != nullptr) return best;
    throw SynthesisError(fmt::format("the solver Z3 failed: {}", error.msg()));
  }
  return best;
}

}  // namespace chorus::synth::exact
