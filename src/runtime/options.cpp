#include "chorus/options.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "chorus/error.hpp"
#include "runtime/options_env.hpp"

namespace chorus {
namespace {

constexpr std::size_t kMinSlotBytes = 1024;
constexpr std::size_t kMaxSlotBytes = 64 * 1024 * 1024;

/// Every variable that Chorus reads, for the search for misspelt ones.
constexpr std::array<std::string_view, 38> kKnown = {"CHORUS_JOIN_TIMEOUT_MS",
                                                     "CHORUS_TIMEOUT_MS",
                                                     "CHORUS_TRANSPORTS",
                                                     "CHORUS_SOCKET_IFNAME",
                                                     "CHORUS_TCP_SOCKETS",
                                                     "CHORUS_RDMA_HCA",
                                                     "CHORUS_RDMA_GID_INDEX",
                                                     "CHORUS_RDMA_TC",
                                                     "CHORUS_RDMA_SL",
                                                     "CHORUS_RDMA_TIMEOUT",
                                                     "CHORUS_RDMA_RETRY",
                                                     "CHORUS_RDMA_QPS",
                                                     "CHORUS_RDMA_RAILS",
                                                     "CHORUS_RDMA_GPU",
                                                     "CHORUS_SLOT_BYTES",
                                                     "CHORUS_SLOTS",
                                                     "CHORUS_DETERMINISTIC",
                                                     "CHORUS_ALGORITHM",
                                                     "CHORUS_TOPOLOGY",
                                                     "CHORUS_PLAN",
                                                     "CHORUS_SYNTHESIS_MS",
                                                     "CHORUS_PROBE_MS",
                                                     "CHORUS_PROBE_CACHE",
                                                     "CHORUS_PROBE_MAX_AGE_S",
                                                     "CHORUS_FLIGHT_DIR",
                                                     "CHORUS_SPIN_US",
                                                     "CHORUS_SLICE_US",
                                                     "CHORUS_POLL_US",
                                                     "CHORUS_MACHINE",
                                                     "CHORUS_LOG",
                                                     "CHORUS_NCCL_FALLBACK",
                                                     "CHORUS_NCCL_FALLBACK_LIBRARY",
                                                     "CHORUS_ID",
                                                     "CHORUS_RANK",
                                                     "CHORUS_WORLD_SIZE",
                                                     "CHORUS_LOCAL_RANK",
                                                     "CHORUS_LOCAL_WORLD_SIZE",
                                                     "CHORUS_SECRET"};

/// What the numbers of Options may be.
struct Range {
  int Options::*field;
  const char* name;
  const char* variable;
  int low, high;
};
constexpr std::array kRanges{
    Range{&Options::join_timeout_ms, "join_timeout_ms", "CHORUS_JOIN_TIMEOUT_MS", 1, INT_MAX},
    Range{&Options::timeout_ms, "timeout_ms", "CHORUS_TIMEOUT_MS", 1, INT_MAX},
    Range{&Options::tcp_sockets, "tcp_sockets", "CHORUS_TCP_SOCKETS", 1, 16},
    Range{&Options::rdma_gid_index, "rdma_gid_index", "CHORUS_RDMA_GID_INDEX", -1, 4095},
    Range{&Options::rdma_traffic_class, "rdma_traffic_class", "CHORUS_RDMA_TC", 0, 255},
    Range{&Options::rdma_service_level, "rdma_service_level", "CHORUS_RDMA_SL", 0, 15},
    Range{&Options::rdma_timeout, "rdma_timeout", "CHORUS_RDMA_TIMEOUT", 1, 31},
    Range{&Options::rdma_retry, "rdma_retry", "CHORUS_RDMA_RETRY", 0, 7},
    Range{&Options::rdma_queue_pairs, "rdma_queue_pairs", "CHORUS_RDMA_QPS", 1, 4},
    Range{&Options::rdma_rails, "rdma_rails", "CHORUS_RDMA_RAILS", 1, 8},
    Range{&Options::rdma_gpu, "rdma_gpu", "CHORUS_RDMA_GPU", 0, 2},
    Range{&Options::slots, "slots", "CHORUS_SLOTS", 2, 32},
    Range{&Options::probe_ms, "probe_ms", "CHORUS_PROBE_MS", 0, 3'600'000},
    Range{&Options::probe_max_age_s, "probe_max_age_s", "CHORUS_PROBE_MAX_AGE_S", 0, INT_MAX},
    Range{&Options::synthesis_ms, "synthesis_ms", "CHORUS_SYNTHESIS_MS", 0, 3'600'000},
    Range{&Options::spin_us, "spin_us", "CHORUS_SPIN_US", 0, 1'000'000},
    Range{&Options::slice_us, "slice_us", "CHORUS_SLICE_US", 0, 100'000},
    Range{&Options::poll_us, "poll_us", "CHORUS_POLL_US", 0, 1'000'000}};

/// Insertions, deletions and replacements that turn `a` into `b` (Levenshtein, 1966).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string suggestion(std::string_view name) {
  const auto nearest = std::min_element(kKnown.begin(), kKnown.end(), [&](auto a, auto b) {
    return edit_distance(name, a) < edit_distance(name, b);
  });
  // A third of the word after "CHORUS_" may be wrong; beyond that a suggestion is a guess.
  const std::size_t tolerated = std::max<std::size_t>(1, (name.size() - 7) / 3);
  if (edit_distance(name, *nearest) > tolerated) return "it has no effect";
  return fmt::format("did you mean {}?", *nearest);
}

void read(const char* name, int low, int high, int& value) {
  if (const auto given = env_integer(name, low, high)) value = static_cast<int>(*given);
}

void read(const char* name, std::string& value) {
  if (auto given = env(name)) value = std::move(*given);
}

/// A variable whose empty value means "nothing", not "the default".
void read_or_empty(const char* name, std::string& value) {
  if (const char* given = std::getenv(name)) value = given;
}

void read_slot_bytes(std::size_t& value) {
  const auto given = env_integer("CHORUS_SLOT_BYTES", kMinSlotBytes, kMaxSlotBytes);
  if (!given) return;
  if (*given % 64 != 0) {
    throw InputError(fmt::format("CHORUS_SLOT_BYTES={}: must be a multiple of 64", *given));
  }
  value = static_cast<std::size_t>(*given);
}

void read_log_level(std::string& value) {
  read("CHORUS_LOG", value);
  try {
    (void)parse_log_level(value);
  } catch (const InputError&) {
    throw InputError(
        fmt::format("CHORUS_LOG={}: must be one of error, warn, info and debug", value));
  }
}

void read_transports(std::string& value) {
  read("CHORUS_TRANSPORTS", value);
  // Which names exist is the transports' business; here only the shape of the list.
  if (value.front() == ',' || value.back() == ',' || value.find(",,") != std::string::npos ||
      value.find(' ') != std::string::npos) {
    throw InputError(fmt::format(
        "CHORUS_TRANSPORTS={}: must be names separated by single commas, such as shm,tcp", value));
  }
}

}  // namespace

std::optional<std::string> env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

std::optional<long long> env_integer(const char* name, long long low, long long high) {
  const auto text = env(name);
  if (!text) return std::nullopt;
  long long value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || value < low || value > high) {
    throw InputError(
        fmt::format("{}={}: must be a whole number in [{}, {}]", name, *text, low, high));
  }
  return value;
}

std::string user_cache_directory() {
  if (const auto cache = env("XDG_CACHE_HOME")) return *cache + "/chorus";
  if (const auto home = env("HOME")) return *home + "/.cache/chorus";
  return {};
}

void warn_about_unknown_variables() {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> warned;
  const std::lock_guard lock(mutex);
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("CHORUS_")) continue;
    // The tests' and the benchmark's own.
    if (name.starts_with("CHORUS_TEST_") || name.starts_with("CHORUS_PERF_")) continue;
    if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) continue;
    if (!warned.insert(std::string(name)).second) continue;
    log(LogLevel::warn, "", fmt::format("unknown variable {}: {}", name, suggestion(name)));
  }
}

void require_valid(const Options& options) {
  for (const Range& range : kRanges) {
    const int value = options.*range.field;
    if (value >= range.low && value <= range.high) continue;
    throw InputError(fmt::format("Options::{} = {}: must be in [{}, {}]", range.name, value,
                                 range.low, range.high));
  }
  if (options.slot_bytes < kMinSlotBytes || options.slot_bytes > kMaxSlotBytes ||
      options.slot_bytes % 64 != 0) {
    throw InputError(fmt::format("Options::slot_bytes = {}: must be a multiple of 64 in [{}, {}]",
                                 options.slot_bytes, kMinSlotBytes, kMaxSlotBytes));
  }
}

Options Options::from_env() {
  warn_about_unknown_variables();
  Options options;
  for (const Range& range : kRanges) {
    read(range.variable, range.low, range.high, options.*range.field);
  }
  read_transports(options.transports);
  read("CHORUS_SOCKET_IFNAME", options.interface_name);
  read("CHORUS_RDMA_HCA", options.rdma_hca);
  read_slot_bytes(options.slot_bytes);
  int deterministic = 0;
  read("CHORUS_DETERMINISTIC", 0, 1, deterministic);
  options.deterministic = deterministic == 1;
  read("CHORUS_ALGORITHM", options.algorithm);
  read("CHORUS_TOPOLOGY", options.topology_file);
  read("CHORUS_PLAN", options.plan_file);
  options.probe_cache = user_cache_directory();
  read_or_empty("CHORUS_PROBE_CACHE", options.probe_cache);
  read_or_empty("CHORUS_FLIGHT_DIR", options.flight_dir);
  read("CHORUS_MACHINE", options.machine);
  read_log_level(options.log_level);
  return options;
}

}  // namespace chorus
