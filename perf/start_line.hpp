// The line from which all ranks start an iteration at the same moment, whatever the library.
#pragma once

#include <atomic>
#include <cstdint>
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
  /// Maps the page at `path`, which the driver made with create(). Throws chorus::Error.
  StartLine(const std::string& path, int rank, int world_size);
  StartLine(const StartLine&) = delete;
  StartLine& operator=(const StartLine&) = delete;
  ~StartLine();

  /// Makes the page, all zero. Throws chorus::Error.
  static void create(const std::string& path);

  /// Returns when all `parties` ranks have called it: world_size ranks, or ranks 0 and 1 alone.
  void wait_all() { wait(page_->all, world_size_); }
  void wait_pair() { wait(page_->pair, 2); }

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
  int world_size_;
  int spins_;
};

}  // namespace chorus::perf
