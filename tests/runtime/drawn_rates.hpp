// Hosts that nobody has, for what must hold on every host.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "topology/host_rates.hpp"

namespace chorus::testing {

/// Times that grow with size, of a range of 100:1.
inline HostRates drawn_rates(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto factor = [&] { return std::exp2(static_cast<double>(random() % 664) / 100); };
  HostRates rates = assumed_host_rates();
  rates.machine = "drawn";
  rates.pairs[0].line_s = 1e-8 * factor();
  rates.pairs[0].samples.clear();
  HostRates::Sample last{1024, 1e-8 * factor(), 1e-8 * factor(), 1e-7 * factor(), 1e-8 * factor()};
  for (int i = 0; i < 7; ++i) {
    last.together = 1 + static_cast<double>(random() % 100) / 50;
    rates.pairs[0].samples.push_back(last);
    last = {last.bytes * 4, last.stage_s * (1 + factor() / 20), last.fetch_s * (1 + factor() / 20),
            last.kernel_s * (1 + factor() / 20), last.mapped_s * (1 + factor() / 20)};
  }
  return rates;
}

}  // namespace chorus::testing
