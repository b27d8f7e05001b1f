#include "model/bounds/carry.hpp"

#include <algorithm>
#include <cstddef>

#include "base/check.hpp"
#include "base/index.hpp"

namespace chorus::bounds {
CarryProgram::CarryProgram(const Network& network) : network_(network) {
  for (const Network::Arc& arc : network.arcs) program_.add_variable(0, arc.capacity, 0);
  rate_ = program_.add_variable(0, network.unlimited, 1);
  for (const Network::Group& group : network.groups) {
    std::vector<LinearProgram::Term> terms;
    for (const int arc : group.arcs) terms.push_back({arc, 1});
    group_rows_.push_back(program_.add_row(-LinearProgram::kInfinity, group.capacity, terms));
  }
  for (int node = 0; node < network.num_nodes(); ++node) {
    if (!network.is_terminal(node)) add_balance(node);
  }
}

int CarryProgram::require(const std::vector<int>& arcs, double weight) {
  std::vector<LinearProgram::Term> terms;
  for (const int arc : arcs) terms.push_back({arc, 1});
  terms.push_back({rate_, -weight});
  rows_.push_back(program_.add_row(0, LinearProgram::kInfinity, terms));
  return static_cast<int>(rows_.size()) - 1;
}

void CarryProgram::require_cut(const std::vector<char>& side, double weight) {
  cuts_.push_back({side, weight, require(network_.arcs_across(side), weight)});
}

void CarryProgram::solve() {
  CHORUS_CHECK(program_.maximize(), "carrying nothing at all is always possible");
  rates_.push_back(rate());
  constexpr double kLatest = 0.3;
  const bool first = mean_.empty();
  mean_.resize(network_.arcs.size());
  for (std::size_t arc = 0; arc < mean_.size(); ++arc) {
    mean_[arc] += (first ? 1 : kLatest) * (carried(static_cast<int>(arc)) - mean_[arc]);
  }
}

bool CarryProgram::hardly_falls() const {
  constexpr std::size_t kRounds = 24;
  constexpr double kHardly = 0.999;
  const std::size_t rounds = rates_.size();
  return rounds > kRounds && rates_.back() > kHardly * rates_[rounds - 1 - kRounds];
}

double CarryProgram::carried(int arc) const { return std::max(0.0, program_.value(arc)); }

bool CarryProgram::limits(int requirement) const {
  return program_.price(rows_[at(requirement)]) > 1e-9;
}

void CarryProgram::add_balance(int node) {
  std::vector<LinearProgram::Term> terms;
  for (std::size_t arc = 0; arc < network_.arcs.size(); ++arc) {
    const Network::Arc& ends = network_.arcs[arc];
    if (ends.src == ends.dst) continue;
    if (ends.src == node) terms.push_back({static_cast<int>(arc), 1});
    if (ends.dst == node) terms.push_back({static_cast<int>(arc), -1});
  }
  program_.add_row(0, 0, terms);
}

bool CarryProgram::crosses(int group, const std::vector<int>& arcs) const {
  const std::vector<int>& members = network_.groups[at(group)].arcs;
  return std::any_of(arcs.begin(), arcs.end(), [&](int arc) {
    return std::binary_search(members.begin(), members.end(), arc);
  });
}

void CarryProgram::explain(Rate& rate) const {
  std::vector<int> limiting_cuts;
  for (std::size_t group = 0; group < group_rows_.size(); ++group) {
    if (program_.price(group_rows_[group]) > 1e-9) rate.groups.push_back(static_cast<int>(group));
  }
  for (std::size_t i = 0; i < cuts_.size(); ++i) {
    const Cut& cut = cuts_[i];
    if (!limits(cut.requirement)) continue;
    limiting_cuts.push_back(static_cast<int>(i));
    if (network_.crossing(cut.side) <= rate.gb_s * cut.weight * (1 + 1e-6)) {
      rate.side = cut.side;
      rate.arcs = network_.arcs_across(cut.side);
      std::erase_if(rate.groups, [&](int group) { return !crosses(group, rate.arcs); });
      return;
    }
  }
  std::vector<char> named(network_.arcs.size(), 0);
  for (const int cut : limiting_cuts) {
    for (const int arc : network_.arcs_across(cuts_[at(cut)].side)) named[at(arc)] = 1;
  }
  for (std::size_t arc = 0; arc < named.size(); ++arc) {
    if (named[arc] != 0) rate.arcs.push_back(static_cast<int>(arc));
  }
  rate.words = "no single cut, several together";
}

}  // namespace chorus::bounds
