// Ranks in an order, as short as they are regular.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "chorus/communicator.hpp"

namespace chorus {

/// Distinct ranks in an order, as runs of consecutive ones: a world of any size is one run, so that
/// what each of n ranks says of all n is compared in a moment.
class RankList {
 public:
  struct Run {
    Rank first;
    std::uint32_t begin;  ///< where in the list it begins

    bool operator==(const Run&) const = default;
  };

  RankList() = default;
  explicit RankList(std::span<const Rank> ranks) {
    for (const Rank rank : ranks) add(rank, 1);
  }
  /// `count` consecutive ranks, at the end.
  void add(Rank first, std::uint32_t count) {
    const bool goes_on =
        !runs_.empty() &&
        runs_.back().first + static_cast<Rank>(size_ - runs_.back().begin) == first;
    if (!goes_on) runs_.push_back({first, size_});
    size_ += count;
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] Rank operator[](std::size_t index) const {
    const auto after =
        std::upper_bound(runs_.begin(), runs_.end(), index,
                         [](std::size_t i, const Run& run) { return i < run.begin; });
    const Run& run = *std::prev(after);
    return run.first + static_cast<Rank>(index - run.begin);
  }
  [[nodiscard]] std::optional<std::size_t> index_of(Rank rank) const {
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      const Rank beyond = rank - runs_[r].first;
      if (beyond >= 0 && static_cast<std::uint32_t>(beyond) < length(r)) {
        return runs_[r].begin + static_cast<std::size_t>(beyond);
      }
    }
    return std::nullopt;
  }
  [[nodiscard]] bool contains(Rank rank) const { return index_of(rank).has_value(); }
  [[nodiscard]] std::span<const Run> runs() const { return runs_; }
  /// Of runs()[run].
  [[nodiscard]] std::uint32_t length(std::size_t run) const {
    return (run + 1 < runs_.size() ? runs_[run + 1].begin : size_) - runs_[run].begin;
  }
  bool operator==(const RankList&) const = default;

  /// Calls `use(rank)` for each, in order.
  template <class Use>
  void for_each(Use use) const {
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      for (std::uint32_t i = 0; i < length(r); ++i) use(runs_[r].first + static_cast<Rank>(i));
    }
  }
  template <class Holds>
  [[nodiscard]] std::optional<Rank> find_if(Holds holds) const {
    for (std::size_t r = 0; r < runs_.size(); ++r) {
      for (std::uint32_t i = 0; i < length(r); ++i) {
        if (holds(runs_[r].first + static_cast<Rank>(i))) {
          return runs_[r].first + static_cast<Rank>(i);
        }
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<Run> runs_;
  std::uint32_t size_ = 0;
};

}  // namespace chorus
