// Readers of what ranks leave behind: flight records and probed networks.
#include <cmath>
#include <numeric>

#include "chorus/error.hpp"
#include "cli/flight/flight_record.hpp"
#include "model/json/json.hpp"
#include "runtime/host/probe_cache.hpp"
#include "tests/fuzz/all_readers.hpp"
#include "topology/discover/host_rates.hpp"

namespace chorus::fuzz {
namespace {

std::string flight(const std::string& input) {
  try {
    const Flight flight = flight_from_json(input, "fuzz");
    if (flight.rank < 0 || flight.rank >= flight.world_size) return "a rank outside its world";
  } catch (const InputError& refused) {
    return std::string_view(refused.what()).starts_with("fuzz") ? "" : refused.what();
  }
  return "";
}

/// A job takes its hosts' part of what was probed and makes a topology of it.
std::string probe_cache(const std::string& input) {
  try {
    const probing::ProbedNetwork network = probed_network_from_json(input, "fuzz");
    if (probed_network_from_json(to_json(network), "fuzz") != network) {
      return "another network comes back";
    }
    if (probing::describe(network).empty()) return "no description";
    std::vector<probing::HostPart> parts(network.hosts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].host = static_cast<int>(i);
      parts[i].ranks = {static_cast<Rank>(i)};
    }
    if (const auto fault = malformed(probing::topology_of(network, parts))) return *fault;
    if (const auto some = probing::restricted(network, {network.hosts.back()});
        malformed(probing::topology_of(some, std::span(parts).first(1)))) {
      return "an unsound topology of one host";
    }
  } catch (const InputError& refused) {
    return std::string_view(refused.what()).starts_with("fuzz") ? "" : refused.what();
  }
  return "";
}

/// A communicator decides by it how buffers and messages travel.
std::string host(const std::string& input) {
  try {
    const HostRates rates = host_rates_from_json(input, "fuzz");
    if (host_rates_from_json(to_json(rates), "fuzz") != rates) return "other rates come back";
    if (describe(rates).empty()) return "no description";
    for (double bytes = 1; bytes < 1e12; bytes *= 7) {
      for (const auto way : {&HostRates::Sample::stage_s, &HostRates::Sample::kernel_s}) {
        const double time = seconds(rates, way, bytes);
        if (!std::isfinite(time) || time < 0) return "a time that no clock shows";
      }
    }
    if (!(least_seconds_per_byte(rates, &HostRates::Sample::fetch_s) > 0))
      return "a copy in no time";
  } catch (const InputError& refused) {
    return std::string_view(refused.what()).starts_with("fuzz") ? "" : refused.what();
  }
  return "";
}

std::vector<std::string> host_samples() {
  HostRates rates = assumed_host_rates();
  rates.machine = "a processor, 2 processors, Linux 6.1, boot 1";
  rates.measured_at_s = 1'700'000'000;
  rates.pairs[0].samples = {{4096, 1e-7, 1e-7, 1e-6, 1e-7}, {65'536, 1e-6, 2e-6, 4e-6, 1e-6}};
  HostRates two = rates;
  two.pairs.push_back(two.pairs[0]);
  two.pairs[1].distance = "packages";
  return {to_json(rates), to_json(two)};
}

constexpr const char* kFlight = R"json({"format": "chorus-flight", "version": 1,
  "communicator": "world", "rank": 1, "world_size": 4, "host": "node7", "pid": 77,
  "failure": "rank 1: rank 2 died", "waiting": "step 3 of 6", "calls": [
  {"sequence": 7, "call": "all_reduce(count 1000, float32, sum)", "schedule": "ring",
   "begun_us": 1700000000000000, "finished_us": 1700000000000400},
  {"sequence": 1, "call": "send(count 8, uint8)", "peer": 2, "schedule": "",
   "begun_us": 1700000000001000, "finished_us": null}]})json";

std::vector<std::string> probe_samples() {
  probing::ProbedNetwork network;
  network.hosts = {"a", "b", "c", "d"};
  network.measured_at_s = 1'700'000'000;
  network.tree.out = {1e9, 1e9, 2e9, 1e9};
  network.tree.in = {1e9, 1e9, 2e9, 1e9};
  network.tree.groups = {{.hosts = {0, 1}, .out = 5e8, .in = 5e8}};
  network.tree.core = 4e9;
  network.cable_alpha_s = {1e-5, 1e-5, 2e-5, 1e-5};
  network.trunk_alpha_s = {3e-5};
  probing::ProbedNetwork several = network;
  several.further.push_back({.name = "10.1.0.0/24",
                             .hosts = {"a", "c"},
                             .tree = {.out = {1e9, 2e9}, .in = {1e9, 1e9}, .groups = {}},
                             .cable_alpha_s = {0, 0},
                             .measured_at_s = network.measured_at_s});
  return {to_json(network), to_json(several)};
}

}  // namespace

std::vector<Reader> record_readers() {
  return {{"flight_json", Grammar::json, flight, [] { return std::vector<std::string>{kFlight}; }},
          {"probe_cache_json", Grammar::json, probe_cache, probe_samples},
          {"host_json", Grammar::json, host, host_samples}};
}

}  // namespace chorus::fuzz
