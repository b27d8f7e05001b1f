#include "perf/families/measure.hpp"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "cli/synth/synth_report.hpp"
#include "model/schedule/contract.hpp"
#include "perf/cpu_time.hpp"
#include "perf/families/instances.hpp"
#include "synth/plan.hpp"
#include "topology/discover/sources.hpp"
#include "topology/probing/declared_networks.hpp"

namespace chorus::perf {
namespace {

struct Wiring {
  std::string family;
  std::string name;
};

std::vector<FamilyResult> planned(const Topology& topology, const FamilyWishes& wishes) {
  using enum CollectiveKind;
  synth::PlanOptions options;
  options.kinds = {all_gather, reduce_scatter, all_to_all, all_reduce};
  options.sizes = wishes.sizes;
  const Limits limits(topology, options.kinds);
  if (!wishes.exhaustive) {
    options.limit = [&](Collective collective, double size) {
      return limits.seconds(collective.kind, size);
    };
  }
  const synth::Planned planned =
      synth::make_plan(topology, options, all_strategies(), synth::Budget{});
  std::vector<FamilyResult> results;
  for (const synth::Choice& choice : planned.choices) {
    results.push_back(
        {std::string(name_of(choice.kind)), choice.size_bytes,
         limits.seconds(choice.kind, static_cast<double>(choice.size_bytes)) / choice.seconds,
         choice.strategy, choice.schedule.name,
         choice.next_best_s > 0 ? choice.next_best_s / choice.seconds : 0});
  }
  return results;
}

/// What the child writes: the row as a record of its own.
std::string answer(const Wiring& wiring, const FamilyWishes& wishes) {
  FamilyRow row{wiring.family, wiring.name, 0, 0, 0, {}, {}};
  try {
    const Topology topology = probing::with_joined_networks(topology_from_name(wiring.name));
    row.ranks = topology.world_size();
    row.results = planned(topology, wishes);
  } catch (const std::exception& error) {
    row.failure = error.what();
  }
  return to_json(FamilyReport{{}, {}, {}, {}, {std::move(row)}});
}

[[noreturn]] void plan_in_child(int out, const Wiring& wiring, const FamilyWishes& wishes) {
  const auto seconds = static_cast<rlim_t>(wishes.most_cpu_s);
  const rlimit limit{seconds, seconds + 1};
  ::setrlimit(RLIMIT_CPU, &limit);
  const std::string text = answer(wiring, wishes);
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t written = ::write(out, text.data() + done, text.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) ::_exit(1);
    done += static_cast<std::size_t>(written);
  }
  ::_exit(0);
}

std::string read_all(int in) {
  std::string text;
  std::array<char, 1 << 16> buffer{};
  for (;;) {
    const ssize_t got = ::read(in, buffer.data(), buffer.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

FamilyRow measure(const Wiring& wiring, const FamilyWishes& wishes) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) throw std::system_error(errno, std::generic_category(), "pipe");
  Fd in(ends[0]);
  Fd out(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (child == 0) {
    in.reset();
    plan_in_child(out.get(), wiring, wishes);
  }
  out.reset();
  const std::string text = read_all(in.get());
  int status = 0;
  rusage usage{};
  while (::wait4(child, &status, 0, &usage) < 0 && errno == EINTR) {
  }
  FamilyRow row{wiring.family, wiring.name, 0, 0, 0, {}, {}};
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    row = family_report_from_json(text, wiring.name).rows.front();
  } else {
    row.ranks = topology_from_name(wiring.name).world_size();
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    row.failure = signal == SIGXCPU || signal == SIGKILL
                      ? fmt::format("took more than {} CPU seconds", wishes.most_cpu_s)
                      : fmt::format("ended by {}", signal != 0 ? ::strsignal(signal) : "itself");
  }
  row.cpu_s = seconds_of(usage);
  row.peak_gib = static_cast<double>(usage.ru_maxrss) / (1 << 20);
  return row;
}

std::vector<Wiring> wirings(const FamilyWishes& wishes) {
  std::vector<Wiring> all;
  for (const std::string& name : wishes.names) {
    (void)topology_from_name(name);  // before anything is measured
    all.push_back({"named", name});
  }
  if (!all.empty()) return all;
  std::vector<std::string> wanted = wishes.families;
  if (wanted.empty()) {
    for (const Family& family : families()) wanted.emplace_back(family.name);
  }
  // One of each in turn, so that a run that is broken off has seen all families.
  for (int index = 0; index < wishes.instances; ++index) {
    for (const std::string& family : wanted) {
      std::string name = family_instance(family, wishes.seed, index, wishes.most_ranks);
      const bool known =
          std::ranges::any_of(all, [&](const Wiring& other) { return other.name == name; });
      if (!known) all.push_back({family, std::move(name)});
    }
  }
  return all;
}

/// "18.3 CPU s, at least 91.2 % of the limit (all_reduce of 1 GiB)", or why there is no plan.
std::string outcome(const FamilyRow& row) {
  if (!row.failure.empty() || row.results.empty()) return row.failure;
  const FamilyResult& least = *std::ranges::min_element(row.results, {}, &FamilyResult::share);
  return fmt::format("{:.1f} CPU s, at least {:.1f} % of the limit ({} of {})", row.cpu_s,
                     100 * least.share, least.collective, human_bytes(least.bytes));
}

}  // namespace

void measure_families(const FamilyWishes& wishes, FamilyReport& report,
                      const std::function<void()>& added,
                      const std::function<void(std::string_view)>& say) {
  const std::vector<Wiring> all = wirings(wishes);
  std::size_t at = 0;
  for (const Wiring& wiring : all) {
    ++at;
    const auto is_this = [&](const FamilyRow& row) { return row.name == wiring.name; };
    if (std::ranges::any_of(report.rows, is_this)) continue;
    say(fmt::format("{} of {}: {} ({})", at, all.size(), wiring.name, wiring.family));
    report.rows.push_back(measure(wiring, wishes));
    say(outcome(report.rows.back()));
    added();
  }
}

}  // namespace chorus::perf
