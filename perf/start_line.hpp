// The line from which all ranks start an iteration at the same moment, whatever the library.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace chorus::perf {

/// A spinning barrier on a page that all workers of a job map, and one number they agree on.
///
/// A library's own barrier lets ranks go at different moments, and each library at different ones,
/// which would be counted as part of an operation of less than a microsecond. So every iteration
/// begins with the library's barrier, which drains what is in flight, and then this line, which is
/// the same for all. Waiting ranks yield early when there are more of them than cores.
class StartLine {
 public:
  /// Hands rank 0's number to all, or to rank 1 alone, where a page does not reach them.
  using Agree = std::function<std::uint64_t(std::uint64_t mine, bool pair)>;

  /// Maps the page at `path`, which the driver made with create(). Throws chorus::Error.
  StartLine(const std::string& path, int rank, int world_size);
  /// The same for `parties` ranks of one of several hosts, each of which has a page; `pair` says
  /// whether ranks 0 and 1 share this one. Hosts do not wait for each other here: what the
  /// library's barrier leaves between them is part of what is measured, as in other benchmarks.
  StartLine(const std::string& path, int rank, int parties, bool pair, Agree agree);
  StartLine(const StartLine&) = delete;
  StartLine& operator=(const StartLine&) = delete;
  ~StartLine();

  /// Makes the page, all zero. Throws chorus::Error.
  static void create(const std::string& path);

  /// Returns when all `parties` ranks have called it: world_size ranks, or ranks 0 and 1 alone.
  void wait_all() { wait(page_->all, parties_); }
  void wait_pair() {
    if (pair_) wait(page_->pair, 2);
  }

  /// Rank 0's number, on all ranks, or on ranks 0 and 1 alone.
  std::uint64_t agree_all(std::uint64_t mine);
  std::uint64_t agree_pair(std::uint64_t mine);

 private:
  struct Gate {
    alignas(64) std::atomic<std::uint32_t> arrived;
    alignas(64) std::atomic<std::uint32_t> generation;
  };
  struct Page {
    Gate all, pair;
    alignas(64) std::atomic<std::uint64_t> number;
  };
  void wait(Gate& gate, int parties) const;

  Page* page_;
  int rank_;
  int parties_;
  bool pair_;
  int spins_;
  Agree agree_;
};

}  // namespace chorus::perf
