// The language of machine names: TERM{+TERM}, a TERM being [HOSTS*]NAME[:SHAPE][,KEY=VALUE]…
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chorus/topology.hpp"

namespace chorus {

/// Of one host, in generated networks.
inline constexpr int kMostCables = 8;

/// Ranks and links beyond which a name is refused: they would be typing errors.
inline constexpr long kMostRanks = 1 << 16;
inline constexpr long kMostLinks = 1 << 21;

/// A parsed term of a name, and how to complain about a part of it (docs/topologies.md has the
/// grammar).
class Spec {
 public:
  /// The terms of `text`. Throws InputError naming the column of the first mistake.
  [[nodiscard]] static std::vector<Spec> parse(std::string_view text);

  struct Option {
    std::string key;
    std::string value;
    std::size_t key_at = 0;
    std::size_t value_at = 0;
    bool used = false;
  };

  std::string text;          ///< the whole name, of which this may be one term of several
  std::size_t begin_at = 0;  ///< of the term within `text`
  std::size_t end_at = 0;
  std::optional<int> hosts;  ///< of HOSTS*, if written
  std::string name;
  std::size_t name_at = 0;
  std::vector<int> shape;
  std::size_t shape_at = 0;
  std::vector<Option> faults;  ///< without=, cut= and slow=, in their order; each may be repeated

  /// The value of `key`, which must be positive and at most `most`, or `fallback`.
  double number(std::string_view key, double fallback, double most = 1e6);
  /// The value of `key`, which must be from `least` to `most`, or `fallback`.
  int integer(std::string_view key, int fallback, int least = 1, int most = kMostRanks);
  bool yes_no(std::string_view key, bool fallback);
  /// Throws InputError unless the shape has between `least` and `most` extents, each ≥ `smallest`.
  void expect_shape(std::size_t least, std::size_t most, int smallest, std::string_view example);
  /// Throws InputError naming the first option nobody asked for, with the ones that exist.
  void expect_all_used() const;

  /// Throws InputError: "TEXT", column AT+1: WHAT.
  [[noreturn]] void fail(std::size_t at, std::string_view what) const;

 private:
  Spec(std::string_view text, std::size_t begin, std::size_t end);
  void read_options(std::size_t at);
  Option* find(std::string_view key);

  std::vector<Option> options_;
  std::vector<std::string> known_;
};

/// Machines: one box, or all boxes of all terms joined by a network. Nothing if a term names no
/// machine.
[[nodiscard]] std::optional<Topology> make_machines(std::span<Spec> specs);
/// Generators; nothing if the name is not theirs.
[[nodiscard]] std::optional<Topology> make_generated(Spec& spec);
/// Hosts of one rank around Ethernet switches; `spec` names one of them.
[[nodiscard]] Topology make_lan(Spec& spec);
/// Graphs drawn by a seed.
[[nodiscard]] Topology make_random(Spec& spec);
[[nodiscard]] Topology make_switch_tree(Spec& spec);
[[nodiscard]] Topology make_random_lan(Spec& spec);
[[nodiscard]] std::span<const std::string_view> generator_names();
/// `topology` without the nodes and cables that the faults of `specs` take away, and with the rates
/// that they leave. Ranks are numbered anew, in their order. Throws InputError naming the column of
/// a fault that names nothing.
[[nodiscard]] Topology with_faults(Topology topology, std::span<const Spec> specs);

}  // namespace chorus
