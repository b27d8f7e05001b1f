// Which accesses of memory happen before which others, by the rules of PTX's memory model, and
// which conflicting ones do not: races.
//
// A clock per block, not per thread: barriers order all of a block's threads, so a block counts its
// barriers (epochs) and knows up to which epoch it has seen each other block. What one thread knows
// more than its block, from what it acquired since the last barrier, is kept beside it until the
// next one, so that nothing is lost against a clock per thread.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "module.hpp"

namespace ptx {

inline constexpr std::uint32_t kMostBlocks = 64;    ///< resident at a time, of all ranks
inline constexpr std::uint32_t kMostThreads = 512;  ///< of one block

/// Epochs below it are seen, by block.
using Clock = std::array<std::uint32_t, kMostBlocks>;

/// One thread up to its `release`-th release in an epoch.
struct Point {
  std::uint16_t block = 0;
  std::uint16_t thread = 0;
  std::uint32_t epoch = 0;
  std::uint32_t release = 0;
};

/// What a thread knows.
struct Knowledge {
  Clock clock{};
  std::vector<Point> points;

  void join(const Knowledge& other);
};

/// A resident block as the clocks see it.
struct BlockClock {
  std::uint32_t number = 0;  ///< of its place in a Clock
  std::uint32_t device = 0;
  Knowledge known;  ///< by all of its threads; known.clock[number] is the epoch
  std::array<std::unique_ptr<Knowledge>, kMostThreads>
      more;  ///< what one thread knows, if it is more
  std::uint32_t num_more = 0;
  std::array<std::uint16_t, kMostThreads> releases{};  ///< in this epoch

  [[nodiscard]] const Knowledge& of(std::uint32_t thread) const {
    return more[thread] ? *more[thread] : known;
  }
};

class Clocks {
 public:
  using Found = std::function<void(const std::string&)>;
  Clocks(const Module& module, Found found) : module_(module), found_(std::move(found)) {}

  /// A block begins: it has seen what those that have ended did.
  void begin(BlockClock& block, std::uint32_t device);
  void end(BlockClock& block);
  /// All of its threads have met.
  void barrier(BlockClock& block);

  /// `lanes`: threads of the warp that begins at `first_thread`; each touches `bytes` at its
  /// address.
  void access(BlockClock& block, std::uint32_t first_thread, std::uint32_t lanes,
              const Lanes& addresses, std::uint32_t bytes, const Instruction& instruction,
              bool writes);
  /// What it synchronizes with: release() after the access, acquire() before an atomic one and
  /// after a load.
  void release(BlockClock& block, std::uint32_t thread, std::uint64_t address,
               const Instruction& by);
  void acquire(BlockClock& block, std::uint32_t thread, std::uint64_t address,
               const Instruction& by);

  /// The host, who has seen what was stored at `flag`, reads `words`.
  void told(std::uint64_t flag, const std::vector<std::uint64_t>& words);
  /// Whoever knows as much finds [address, address + bytes) written.
  void complete(const Knowledge& known, std::uint64_t address, std::uint64_t bytes);
  /// Memory that the host reads and writes meanwhile: only for strong accesses that reach it.
  void share_with_host(std::uint64_t address, std::uint64_t bytes);
  /// Other memory lies there from now on: what was done to the former does not count.
  void forget(std::uint64_t address, std::uint64_t bytes);

 private:
  static constexpr std::uint16_t kSeveral = 0x3ff;  ///< threads of one block
  /// The last access of a kind to a cell.
  struct Access {
    std::uint32_t epoch = 0;
    std::uint32_t release = 0;
    std::uint32_t instruction = 0;
    std::uint16_t thread = 0;
    std::uint8_t block = 0xff;   ///< 0xff: none
    std::uint8_t bytes : 4 = 0;  ///< which of the cell's
    std::uint8_t strong : 1 = 0;
    std::uint8_t scope : 2 = 0;
    std::uint8_t write : 1 = 0;
  };
  /// Four bytes of memory.
  struct Cell {
    Access write;
    Access read;
    std::uint32_t more = 0;      ///< of more_: further reads, or writes of other bytes
    std::uint32_t released = 0;  ///< of released_: what a store with release left here
  };
  static constexpr std::uint64_t kPage = 4096;
  using Page = std::array<Cell, kPage / 4>;
  struct Released {
    Knowledge knowledge;
    Scope scope = Scope::none;
    std::uint32_t device = 0;
    std::uint32_t instruction = 0;
  };

  void forget_all();
  void drop(Cell& cell);
  Cell& cell(std::uint64_t address);
  void touch(BlockClock& block, std::uint16_t thread, std::uint64_t address, std::uint32_t bytes,
             const Instruction& instruction, bool writes);
  void touch_cell(BlockClock& block, Cell& cell, const Access& now, std::uint64_t address);
  [[nodiscard]] bool ordered(const Access& before, const BlockClock& block,
                             const Access& now) const;
  [[nodiscard]] bool both_strong(const Access& before, const Access& now) const;
  void remember(Cell& cell, const Access& now, const BlockClock& block);
  void report(const Access& before, const Access& now, std::uint64_t address);
  void check_host(std::uint64_t address, const Instruction& instruction);
  static bool reaches(Scope scope, std::uint32_t from, std::uint32_t to);

  const Module& module_;
  Found found_;
  Clock ended_{};  ///< what a block that begins now has seen
  std::bitset<kMostBlocks> in_use_, had_;
  std::array<std::uint32_t, kMostBlocks> devices_{};
  std::unordered_map<std::uint64_t, std::unique_ptr<Page>> pages_;
  std::uint64_t last_page_ = ~std::uint64_t{0};
  Page* last_ = nullptr;
  std::vector<std::vector<Access>> more_{1};
  std::vector<Released> released_{1};
  std::vector<std::uint32_t> free_more_, free_released_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> host_;
};

}  // namespace ptx
