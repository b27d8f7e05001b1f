// The little language of machine names: [HOSTS*]NAME[:SHAPE][,KEY=VALUE]…
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// A parsed name, and how to complain about a part of it (docs/topologies.md has the grammar).
class Spec {
 public:
  /// Throws InputError naming the column of the first mistake.
  explicit Spec(std::string_view text);

  struct Option {
    std::string key;
    std::string value;
    std::size_t key_at = 0;
    std::size_t value_at = 0;
    bool used = false;
  };

  std::string text;
  std::optional<int> hosts;  ///< of HOSTS*, if written
  std::string name;
  std::size_t name_at = 0;
  std::vector<int> shape;
  std::size_t shape_at = 0;

  /// The value of `key`, which must be positive and finite, or `fallback`.
  double number(std::string_view key, double fallback);
  int integer(std::string_view key, int fallback);
  bool yes_no(std::string_view key, bool fallback);
  /// Throws InputError unless the shape has between `least` and `most` extents, each ≥ `smallest`.
  void expect_shape(std::size_t least, std::size_t most, int smallest, std::string_view example);
  /// Throws InputError naming the first option nobody asked for, with the ones that exist.
  void expect_all_used() const;

  /// Throws InputError: "TEXT", column AT+1: WHAT.
  [[noreturn]] void fail(std::size_t at, std::string_view what) const;

 private:
  Option* find(std::string_view key);

  std::vector<Option> options_;
  std::vector<std::string> known_;
};

/// The candidate closest to `word` by edits, if close enough to be meant.
[[nodiscard]] std::optional<std::string_view> did_you_mean(
    std::string_view word, std::span<const std::string_view> candidates);

/// Ranks and links beyond which a name is refused: they would be typing errors.
inline constexpr long kMostRanks = 1 << 16;
inline constexpr long kMostLinks = 1 << 21;

/// Machines (one box or HOSTS of them) and generators; nothing if the name is not theirs.
[[nodiscard]] std::optional<Topology> make_machine(Spec& spec);
[[nodiscard]] std::optional<Topology> make_generated(Spec& spec);
/// Hosts of one rank around Ethernet switches; `spec` names one of them.
[[nodiscard]] Topology make_lan(Spec& spec);
[[nodiscard]] std::span<const std::string_view> generator_names();

}  // namespace chorus
