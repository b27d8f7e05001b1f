#include "perf/report/nccl_tests.hpp"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "base/counted.hpp"

namespace chorus::perf {
namespace {

/// The program of nccl-tests for a benchmark, or nothing.
std::string program_of(const Benchmark& entry) {
  if (entry.point_to_point || entry.kind == Kind::barrier) return {};
  if (entry.kind == Kind::all_to_all) return "alltoall_perf";
  return std::string(entry.name) + "_perf";
}

std::string type_of(const std::string& name) {
  static const std::map<std::string, std::string> names = {
      {"float16", "half"},       {"float32", "float"},      {"float64", "double"},
      {"float8_e4m3", "f8e4m3"}, {"float8_e5m2", "f8e5m2"},
  };
  const auto found = names.find(name);
  return found == names.end() ? name : found->second;
}

/// Seven columns with as many digits as fit.
std::string time_text(double us) {
  return us >= 10'000 ? fmt::format("{:7.0f}", us)
         : us >= 100  ? fmt::format("{:7.1f}", us)
                      : fmt::format("{:7.2f}", us);
}

/// time, algbw, busbw and #wrong of one placement.
std::string placement_text(const Row* row) {
  if (row == nullptr || !row->p50_us) {
    return fmt::format("  {:>7}  {:>6}  {:>6}  {:>5}", "N/A", "N/A", "N/A", "N/A");
  }
  return fmt::format("  {}  {:6.2f}  {:6.2f}  {:5}", time_text(*row->p50_us), row->algbw,
                     row->busbw, row->wrong);
}

constexpr const char* kHeader =
    "#\n"
    "#                                                              out-of-place                  "
    "     in-place          \n"
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time"
    "   algbw   busbw #wrong\n"
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)"
    "  (GB/s)  (GB/s)       \n";

/// What one program printed: a collective through one library in one place.
using Run = std::tuple<std::string, std::string, std::string>;
Run run_of(const Row& row) { return {row.collective, row.transport, row.library}; }

struct Block {
  std::vector<const Row*> rows;
  std::map<std::uint64_t, const Row*> in_place;  ///< by bytes
};

std::string text_of(const Block& block, const Report& report, int root) {
  const Row& first = *block.rows.front();
  const Benchmark& entry = benchmark(kind_named(first.collective).value_or(Kind::all_reduce));
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "# Collective test starting: {}\n", program_of(entry));
  fmt::format_to(out, "# {} over {}, {}, times are medians\n", first.library, first.transport,
                 counted(first.ranks, "rank"));
  for (const Peer& peer : report.peers) {
    if (peer.name != first.library || peer.transport != first.transport) continue;
    fmt::format_to(out, "# {}: {}\n", peer.version, peer.command);
  }
  text += kHeader;
  std::uint64_t wrong = 0;
  std::set<std::string> reasons;
  double busbw = 0;
  int measured = 0;
  for (const Row* row : block.rows) {
    const auto found = block.in_place.find(row->bytes);
    const Row* const other = found == block.in_place.end() ? nullptr : found->second;
    fmt::format_to(out, "{:12}  {:12}  {:>8}  {:>6}  {:>6}{}{}\n", row->bytes, row->count,
                   type_of(row->type), row->op.empty() ? "none" : row->op, entry.rooted ? root : -1,
                   placement_text(row), placement_text(other));
    for (const Row* placed : {row, other}) {
      if (placed == nullptr) continue;
      if (!placed->reason.empty() && reasons.insert(placed->reason).second) {
        fmt::format_to(out, "# {}\n", placed->reason);
      }
      wrong += placed->wrong;
      if (!placed->p50_us) continue;
      busbw += placed->busbw;
      ++measured;
    }
  }
  fmt::format_to(out, "# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  fmt::format_to(out, "# Avg bus bandwidth    : {:g}\n#\n", measured == 0 ? 0 : busbw / measured);
  fmt::format_to(out, "# Collective test concluded: {}\n#\n", program_of(entry));
  return text;
}

}  // namespace

bool has_nccl_tests_form(Kind kind) { return !program_of(benchmark(kind)).empty(); }

std::string nccl_tests_text(const Report& out_of_place, const Report& in_place, int root) {
  std::vector<Run> order;
  std::map<Run, Block> blocks;
  for (const Row& row : out_of_place.rows) {
    Block& block = blocks[run_of(row)];
    if (block.rows.empty()) order.push_back(run_of(row));
    block.rows.push_back(&row);
  }
  for (const Row& row : in_place.rows) {
    const auto found = blocks.find(run_of(row));
    if (found != blocks.end()) found->second.in_place[row.bytes] = &row;
  }
  std::string text;
  for (const Run& run : order) text += text_of(blocks[run], out_of_place, root);
  return text;
}

}  // namespace chorus::perf
