// Numbers drawn by a seed: equal seeds give equal wirings with every compiler and library.
#pragma once

#include <cmath>
#include <cstdint>
#include <iterator>
#include <random>
#include <utility>
#include <vector>

namespace chorus {

/// Draws by remainders: the distributions of the standard library differ from one to another.
class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed) {}

  /// [0, bound)
  std::size_t below(std::size_t bound) { return random_() % bound; }
  /// [least, most]
  int from(int least, int most) {
    return least + static_cast<int>(below(static_cast<std::size_t>(most - least) + 1));
  }
  bool one_in(int count) { return from(1, count) == 1; }
  template <class List>
  auto of(const List& list) {
    return list[below(std::size(list))];
  }
  /// [least, most], each order of magnitude as often as any other.
  double magnitude(double least, double most) {
    const double share = static_cast<double>(below(10'000)) / 9'999;
    return std::exp(std::log(least) + share * (std::log(most) - std::log(least)));
  }
  template <class List>
  void shuffle(List& list) {
    for (std::size_t i = list.size(); i > 1; --i) std::swap(list[i - 1], list[below(i)]);
  }

 private:
  std::mt19937_64 random_;
};

}  // namespace chorus
