// What chorus-perf-synthesis measures: rows with a name, a target and whether it was met.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chorus::perf {

/// One figure. Times are CPU seconds of one core.
struct SynthesisRow {
  std::string part = {};  ///< of which part of the table, see SynthesisPart
  std::string name = {};  ///< what was synthesized: "dgx1 all_gather (6,3,7)"
  double seconds = 0;
  std::optional<double> peer_seconds = {};  ///< of msccl-tools, less its start-up
  bool peer_timed_out = false;              ///< peer_seconds is what it had used by then
  std::string target = {};                  ///< for people: "at most 3 s"; empty: none of its own
  bool found = true;                        ///< a schedule that first_fault() finds nothing in
  bool met = true;                          ///< the target was met
  std::string note = {};                    ///< what was found
};

/// How long msccl-tools takes, if there is a checkout to run.
class SynthesisPeer {
 public:
  struct Answer {
    double seconds = 0;  ///< CPU, of its process and children, less what starting takes
    bool timed_out = false;
  };

  /// `directory`: a checkout of microsoft/msccl-tools, or empty for none. Throws InputError with
  /// Python's words if it cannot be run.
  SynthesisPeer(std::string directory, std::string python, double most_seconds);

  [[nodiscard]] bool present() const { return !directory_.empty(); }
  [[nodiscard]] double start_up_seconds() const { return start_up_s_; }
  /// `arguments` of `python -m msccl`, in words; equal ones are run once.
  [[nodiscard]] std::optional<Answer> run(const std::string& arguments);

 private:
  std::string directory_;
  std::string python_;
  double most_seconds_ = 0;
  double start_up_s_ = 0;
  std::vector<std::pair<std::string, Answer>> known_;
};

struct SynthesisContext {
  SynthesisPeer& peer;
  /// Called with every row when it is there.
  std::function<void(const SynthesisRow&)> add;
  /// What is being done, for the one who waits.
  std::function<void(std::string_view)> say;
};

/// A part of the table. A new synthesizer adds a part to synthesis_parts() (parts.cpp).
struct SynthesisPart {
  std::string_view name;
  std::string_view what;
  void (*measure)(const SynthesisContext&);
};
[[nodiscard]] std::span<const SynthesisPart> synthesis_parts();

/// CPU seconds that this process has used.
[[nodiscard]] double cpu_seconds();

// Parts of the exact synthesizer (exact_rows.cpp).
void measure_dgx1(const SynthesisContext& context);
void measure_frontier(const SynthesisContext& context);
void measure_64_ranks(const SynthesisContext& context);

// Parts of the planner (plan_rows.cpp).
void measure_plans(const SynthesisContext& context);
void measure_random(const SynthesisContext& context);
void measure_cluster(const SynthesisContext& context);

}  // namespace chorus::perf
