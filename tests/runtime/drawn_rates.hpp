// Hosts that nobody has, for what must hold on every host.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "topology/discover/cpu_place.hpp"
#include "topology/discover/host_rates.hpp"

namespace chorus::testing {

/// Times that grow with size and distance, of a range of 100:1. `distances`: pairs of cores, of the
/// first so many kinds.
inline HostRates drawn_rates(std::uint64_t seed, int distances = 1) {
  std::mt19937_64 random(seed);
  const auto factor = [&] { return std::exp2(static_cast<double>(random() % 664) / 100); };
  HostRates rates = assumed_host_rates();
  rates.machine = "drawn";
  rates.pairs[0].line_s = 1e-8 * factor();
  rates.pairs[0].samples.clear();
  HostRates::Sample last{1024, 1e-8 * factor(), 1e-8 * factor(), 1e-7 * factor(), 1e-8 * factor()};
  for (int i = 0; i < 7; ++i) {
    last.together = 1 + static_cast<double>(random() % 100) / 50;
    last.stream_s = last.stage_s * (0.5 + factor() / 50);
    last.fetch_streamed_s = last.fetch_s * (1 + factor() / 20);
    rates.pairs[0].samples.push_back(last);
    last = {last.bytes * 4, last.stage_s * (1 + factor() / 20), last.fetch_s * (1 + factor() / 20),
            last.kernel_s * (1 + factor() / 20), last.mapped_s * (1 + factor() / 20)};
  }
  if (seed % 2 == 1) {
    rates.loopback = {
        .latency_s = 1e-6 * factor(), .message_s = 1e-7 * factor(), .byte_s = 1e-11 * factor()};
  }
  if (distances > 1) rates.pairs[0].distance = "siblings";
  for (const char* distance : {"cache", "package", "packages"}) {
    if (static_cast<int>(rates.pairs.size()) >= distances) break;
    HostRates::Pair farther = rates.pairs.back();
    farther.distance = distance;
    const double times = 1 + factor() / 20;
    farther.line_s *= 1 + factor() / 10;
    for (HostRates::Sample& sample : farther.samples) {
      sample.stage_s *= times;
      sample.fetch_s *= times;
      sample.kernel_s *= times;
      sample.mapped_s *= times;
    }
    rates.pairs.push_back(std::move(farther));
  }
  return rates;
}

/// `ranks` of a machine of a few packages, each with caches of as many cores of two units each:
/// bound in order, or at random, or here and there not bound at all.
inline std::vector<CpuPlace> drawn_places(std::uint64_t seed, int ranks) {
  std::mt19937_64 random(seed + 7919);
  const auto upto = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(most));
  };
  const int units = upto(2), cores = upto(4), caches = upto(3), packages = upto(4);
  const int all = units * cores * caches * packages;
  const bool in_order = random() % 2 == 0;
  const bool some_unbound = random() % 4 == 0;
  std::vector<CpuPlace> places;
  for (int rank = 0; rank < ranks; ++rank) {
    const int unit = in_order ? rank * all / ranks : upto(all) - 1;
    const int core = unit / units;
    const int cache = core / cores;
    const int package = cache / caches;
    CpuPlace place{.core = core, .cache = cache, .numa = package, .package = package};
    if (some_unbound && random() % 3 == 0) place = {};
    places.push_back(place);
  }
  return places;
}

}  // namespace chorus::testing
