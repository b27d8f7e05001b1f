// Executes kernels: every thread of every block of every launch under way, their warps interleaved
// at random, the lanes of a warp apart where they branch apart.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "clocks.hpp"
#include "module.hpp"

namespace ptx {

struct Block;
struct Warp;
class Machine;

/// A call of a function under way, with the registers of all lanes of one warp. Lanes that came by
/// different ways have different frames.
struct Frame {
  const Function* function = nullptr;
  Frame* parent = nullptr;
  std::uint32_t return_to = 0;
  std::uint32_t users = 0;  ///< fragments and frames above
  std::uint32_t depth = 0;
  std::uint64_t stack = 0;  ///< of each lane's memory, in use below
  std::vector<Lanes> registers;
  std::vector<std::uint32_t> predicates;  ///< a bit per lane
};

/// Lanes of a warp that are at the same place.
struct Fragment {
  std::uint32_t lanes = 0;
  std::uint32_t next = 0;  ///< instruction
  Frame* frame = nullptr;
  bool waits = false;  ///< at a barrier
};

struct Warp {
  Block* block = nullptr;
  std::uint32_t first_thread = 0;
  std::vector<Fragment> fragments;
  std::vector<std::byte> stack;    ///< local memory
  std::uint64_t sleeps_until = 0;  ///< turn
  std::uint32_t ready_at = 0;      ///< index in the machine's list of those that can run, + 1
};

/// What a block's strong loads found. One that only finds again what it knows is waiting: it may
/// sleep, as on a GPU whose other blocks run meanwhile.
struct Polls {
  struct Found {
    std::uint64_t where = 0;  ///< hash of instruction and addresses
    std::uint64_t what = 0;   ///< of the values
  };
  static constexpr std::uint32_t kPatience = 32;
  std::array<Found, 64> found{};
  std::uint32_t repeated = 0;  ///< loads in a row that told nothing new

  void load(const Instruction& one, std::uint32_t lanes, const Lanes& at, const Lanes& values);
  [[nodiscard]] bool waits() const { return repeated > kPatience; }
};

struct Launch;
struct Block {
  Launch* launch = nullptr;
  std::uint32_t index = 0;
  std::uint32_t living = 0;   ///< threads
  std::uint32_t waiting = 0;  ///< of these, at a barrier
  std::vector<std::byte>* shared = nullptr;
  BlockClock clock;
  Polls polls;
  std::vector<std::unique_ptr<Warp>> warps;
};

struct Launch {
  const Function* kernel = nullptr;
  std::vector<std::byte> parameters;
  std::uint32_t device = 0;
  std::uint32_t threads = 0;
  std::uint32_t living = 0;  ///< blocks
  std::vector<std::unique_ptr<Block>> blocks;
  [[nodiscard]] bool ended() const { return living == 0; }
};

/// Memory that an address lies in: [begin, end), empty if there is none.
using Range = std::pair<std::uint64_t, std::uint64_t>;

struct Settings {
  std::uint64_t seed = 1;
  bool races = true;
  std::function<Range(std::uint64_t)> memory = {};     ///< what kernels may touch; all if unset
  std::function<void(const std::string&)> found = {};  ///< called with each finding
};

class Machine {
 public:
  Machine(const Module& module, Settings settings);
  ~Machine();

  /// Begins a launch. `parameters`: of the kernel, as far as they are known.
  Launch& begin(const std::string& kernel, const void* parameters, std::size_t bytes,
                std::uint32_t blocks, std::uint32_t threads, std::uint32_t device);
  void end(Launch& launch);
  /// Executes some instructions of one warp. False: none can run.
  bool turn();
  /// Turns until all launches have ended. False, having said why: they never will.
  bool run(std::uint64_t most_turns);

  [[nodiscard]] std::uint64_t executed() const { return executed_; }  ///< instructions of threads
  [[nodiscard]] std::uint64_t turns() const { return turns_; }
  [[nodiscard]] bool asleep() const {
    return asleep_;
  }  ///< the last turn found one that sleeps or waits
  Clocks& clocks() { return clocks_; }
  void found(const std::string& what) { settings_.found(what); }
  /// Whether instruction `index` has been executed; of those that order.
  [[nodiscard]] const std::vector<bool>& covered() const { return covered_; }

 private:
  friend struct Execution;

  void run_fragment(Warp& warp, std::size_t index, std::uint32_t most);
  void step(Warp& warp, Frame& frame, std::uint32_t lanes, const Instruction& one);
  void branch(Warp& warp, std::size_t index, const Instruction& one, std::uint32_t lanes);
  void call(Fragment& fragment, const Instruction& one, Warp& warp);
  void leave(Warp& warp, std::size_t index, std::uint32_t lanes);
  void wait(Warp& warp, std::size_t index);
  void release_barrier(Block& block);
  void drop(Frame* frame);
  Frame* make_frame(const Function& function);
  bool merge(Warp& warp, std::size_t index);
  std::size_t choose_fragment(Warp& warp);
  void set_ready(Warp& warp, bool ready);
  void lose_lanes(Warp& warp, std::size_t index, std::uint32_t lanes);
  void explain_deadlock();

  const Module& module_;
  Settings settings_;
  std::mt19937_64 random_;
  Clocks clocks_;
  std::vector<std::unique_ptr<Launch>> launches_;
  std::vector<Warp*> ready_;
  std::vector<std::unique_ptr<Frame>> frames_;
  std::map<const Function*, std::vector<Frame*>> free_frames_;
  std::vector<std::vector<std::unique_ptr<std::vector<std::byte>>>> shared_;  ///< [device], idle
  std::vector<Range> ranges_;  ///< of memory, found lately
  std::uint64_t turns_ = 0;
  std::uint64_t executed_ = 0;
  bool asleep_ = false;
  std::vector<bool> covered_;
};

}  // namespace ptx
