// The test of the test: weakens what orders the kernels' accesses, one statement of the source at a
// time, and expects that a trial notices.
//
//   device_ptx_mutants PTX EXPLAINED SOURCES [EVERY [SEEDS [FIRST]]]
//
// PTX: compiled with -lineinfo, so that instructions are known by their statement. EXPLAINED: what
// need not be noticed, and why. EVERY (1): of so many mutants one is tried, beginning with number
// FIRST (0): runs with FIRST 0 to EVERY - 1 try all of them. Exit status 1: a mutant that nobody
// noticed and nobody explained, or an explanation that nothing needs.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>

#include "text.hpp"
#include "trials.hpp"

namespace ptx {
namespace {

constexpr int kLaunches = 2;

std::string content(const std::string& file) {
  std::ifstream in(file);
  if (!in) throw std::runtime_error("cannot read " + file);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// All instructions of one statement, and what is done to them.
struct Mutant {
  std::string what;
  std::string site;
  std::vector<Instruction*> instructions;
  std::function<void(Instruction&)> change;
};

/// The ways to weaken an instruction.
std::vector<std::pair<std::string, std::function<void(Instruction&)>>> changes_of(
    const Instruction& one) {
  std::vector<std::pair<std::string, std::function<void(Instruction&)>>> changes;
  if (one.op == Op::bar_sync)
    changes.emplace_back("no barrier", [](Instruction& i) { i.op = Op::nop; });
  if (one.op == Op::bar_and || one.op == Op::bar_or) {
    changes.emplace_back("no barrier", [](Instruction& i) { i.op = Op::pred_mov; });
  }
  if (one.order == Order::acquire || one.order == Order::release || one.order == Order::acq_rel) {
    changes.emplace_back("relaxed", [](Instruction& i) { i.order = Order::relaxed; });
  }
  if (one.order == Order::acq_rel) {
    changes.emplace_back("release only", [](Instruction& i) { i.order = Order::release; });
    changes.emplace_back("acquire only", [](Instruction& i) { i.order = Order::acquire; });
  }
  if (one.order == Order::relaxed) {
    changes.emplace_back("weak", [](Instruction& i) {
      i.order = Order::weak;
      i.scope = Scope::none;
    });
  }
  if (one.scope == Scope::system)
    changes.emplace_back(".gpu", [](Instruction& i) { i.scope = Scope::device; });
  if (one.scope == Scope::device)
    changes.emplace_back(".cta", [](Instruction& i) { i.scope = Scope::block; });
  return changes;
}

std::vector<Mutant> mutants_of(const Module& module) {
  std::map<std::pair<std::string, std::string>, Mutant> all;
  for (Instruction* const one : module.instructions()) {
    for (auto& [what, change] : changes_of(*one)) {
      Mutant& mutant = all[{one->site, what}];
      mutant.what = what;
      mutant.site = one->site;
      mutant.change = change;
      mutant.instructions.push_back(one);
    }
  }
  std::vector<Mutant> mutants;
  for (auto& [key, mutant] : all) mutants.push_back(std::move(mutant));
  return mutants;
}

/// "a.hpp:12 in b.hpp:34" as what stands there: the function, the statement, and which one of those
/// that are alike in it. Numbers of lines would change with every edit.
class Sources {
 public:
  explicit Sources(std::string folder) : folder_(std::move(folder)) {}

  std::string statement(const std::string& site) {
    const auto in = site.find(" in ");
    const std::string outer = place(in == std::string::npos ? site : site.substr(in + 4));
    return in == std::string::npos ? outer : outer + " <- " + place(site.substr(0, in));
  }

 private:
  const std::vector<std::string>& lines_of(const std::string& file) {
    auto& lines = files_[file];
    if (lines.empty()) {
      std::ifstream in(folder_ + "/" + file);
      for (std::string one; std::getline(in, one);) lines.push_back(one);
    }
    return lines;
  }

  std::string place(const std::string& site) {
    const auto colon = site.find(':');
    const std::string file = site.substr(0, colon);
    const auto& lines = lines_of(file);
    const auto at = static_cast<std::size_t>(std::stoul(site.substr(colon + 1))) - 1;
    if (at >= lines.size()) return site;
    int which = 1;
    for (std::size_t i = at; i-- > 0;) {
      if (trim(lines[i]) == trim(lines[at])) ++which;
      const std::string name = function(lines[i]);
      if (!name.empty())
        return fmt::format("{} {}() {} #{}", file, name, without_comment(lines[at]), which);
    }
    return fmt::format("{} {} #{}", file, without_comment(lines[at]), which);
  }

  static std::string without_comment(std::string_view line) {
    return std::string(trim(line.substr(0, line.find("//"))));
  }

  /// The name that a line defines a function by, or "".
  static std::string function(std::string_view line) {
    const bool inside = line.starts_with("  ") && !line.starts_with("   ");
    if (line.empty() || (line[0] == ' ' && !inside) || line.find("CHORUS_") == line.npos) {
      if (line.find("__device__") == line.npos) return {};
    }
    const auto open = line.find('(');
    if (open == std::string_view::npos) return {};
    auto begin = open;
    while (begin > 0 && (std::isalnum(static_cast<unsigned char>(line[begin - 1])) != 0 ||
                         line[begin - 1] == '_'))
      --begin;
    return std::string(line.substr(begin, open - begin));
  }

  std::string folder_;
  std::map<std::string, std::vector<std::string>> files_;
};

/// `change | statement | reason` lines.
std::map<std::string, std::string> explanations(const std::string& file) {
  std::map<std::string, std::string> all;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') continue;
    const auto last = line.rfind(" | ");
    if (last == std::string::npos)
      throw std::runtime_error("explanation without a reason: " + line);
    all[line.substr(0, last)] = line.substr(last + 3);
  }
  return all;
}

class Campaign {
 public:
  Campaign(const Module& module, int seeds) : module_(module), seeds_(seeds), setups_(setups()) {
    for (const Setup& setup : setups_) {
      sound_.push_back(run(module_, setup, 1, kLaunches, std::uint64_t{1} << 40));
      const Outcome& outcome = sound_.back();
      fmt::print("{:45} {:7.1f} million instructions, {} turns{}\n", setup.name,
                 static_cast<double>(outcome.executed) * 1e-6, outcome.turns,
                 outcome.findings.empty() ? "" : ": " + outcome.findings[0]);
      std::fflush(stdout);
      well_ = well_ && outcome.findings.empty();
    }
  }

  [[nodiscard]] bool well() const { return well_; }
  /// By which trial it is noticed; "" if by none; "not executed" if none comes there.
  std::string noticed(const Mutant& mutant) {
    std::vector<Instruction> before;
    for (Instruction* const one : mutant.instructions) {
      before.push_back(*one);
      mutant.change(*one);
    }
    std::string by = "not executed";
    for (int seed = 1; seed <= seeds_ && (by.empty() || seed == 1); ++seed) {
      for (std::size_t i = 0; i < setups_.size(); ++i) {
        const bool covers = std::any_of(before.begin(), before.end(), [&](const Instruction& one) {
          return sound_[i].covered[one.index];
        });
        if (!covers) continue;
        by.clear();
        const std::uint64_t most = 20 * sound_[i].turns + 100'000;
        const Outcome outcome =
            run(module_, setups_[i], static_cast<std::uint64_t>(seed), kLaunches, most);
        if (outcome.findings.empty()) continue;
        by = setups_[i].name + ": " + outcome.findings[0].substr(0, 60);
        break;
      }
    }
    for (std::size_t i = 0; i < before.size(); ++i) *mutant.instructions[i] = before[i];
    return by;
  }

 private:
  const Module& module_;
  int seeds_;
  std::vector<Setup> setups_;
  std::vector<Outcome> sound_;
  bool well_ = true;
};

int try_all(const std::vector<std::string>& arguments) {
  const Module module(content(arguments.at(1)));
  auto explained = explanations(arguments.at(2));
  Sources sources(arguments.at(3));
  const auto every = static_cast<std::size_t>(arguments.size() > 4 ? std::stoul(arguments[4]) : 1);
  const int seeds = arguments.size() > 5 ? std::stoi(arguments[5]) : 2;
  const std::size_t first = arguments.size() > 6 ? std::stoul(arguments[6]) : 0;
  Campaign campaign(module, seeds);
  if (!campaign.well()) return 1;
  const std::vector<Mutant> mutants = mutants_of(module);
  std::set<std::string> needed;
  std::size_t tried = 0, caught = 0, unexplained = 0;
  for (std::size_t i = first; i < mutants.size(); i += every) {
    const std::string name = mutants[i].what + " | " + sources.statement(mutants[i].site);
    const std::string by = campaign.noticed(mutants[i]);
    ++tried;
    const bool is_caught = !by.empty() && by != "not executed";
    caught += is_caught ? 1 : 0;
    if (is_caught) {
      fmt::print("noticed     {} | {}\n", name, by);
    } else if (explained.contains(name)) {
      needed.insert(name);
      fmt::print("explained   {} | {}\n", name, explained[name]);
    } else {
      ++unexplained;
      fmt::print("{} {} ({} instructions, {})\n", by.empty() ? "UNNOTICED  " : "UNEXECUTED ", name,
                 mutants[i].instructions.size(), mutants[i].site);
    }
    std::fflush(stdout);
  }
  for (const auto& [name, reason] : explained) {
    if (every > 1 || needed.contains(name)) continue;
    fmt::print("UNNEEDED    {}\n", name);
    ++unexplained;
  }
  fmt::print("{} of {} mutants: {} noticed, {} explained, {} neither; {} s of a core\n", tried,
             mutants.size(), caught, needed.size(), unexplained, std::clock() / CLOCKS_PER_SEC);
  return unexplained == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ptx

int main(int argc, char** argv) {
  try {
    return ptx::try_all({argv, argv + argc});
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
