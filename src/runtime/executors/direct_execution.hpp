// The host executor for ranks that share memory: runs one DirectProgram on one rank's buffers.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "collectives/reduce.hpp"
#include "model/program/direct.hpp"
#include "runtime/executors/copy_tuner.hpp"
#include "runtime/executors/direct_cost.hpp"
#include "runtime/executors/execution.hpp"
#include "transports/shm/put_ways.hpp"
#include "transports/shm/shared_window.hpp"

namespace chorus {

/// A DirectProgram made ready for its rank: what it says of the moves of the others too.
struct DirectRoutine {
  /// Chunks in this rank's input that others read, or in its output that another rank stores.
  struct Run {
    Rank rank = 0;  ///< who stores it
    ChunkId chunk = 0;
    int count = 1;
    int index = 0;
  };
  DirectProgram program;
  int chunks_per_block = 1;
  int most_blocks = 1;        ///< of any rank's input or output
  int most_input_blocks = 0;  ///< of any rank's input
  int input_blocks = 0;
  int output_blocks = 0;
  std::vector<Run> staged;      ///< of the input, read by others
  std::vector<Run> collected;   ///< of the output, stored by others
  std::vector<Rank> readers;    ///< others that read this rank's input
  std::vector<Rank> writers;    ///< others that store into its output
  std::vector<Rank> partners;   ///< others whose input it reads or whose output it stores into
  std::vector<RankLoad> loads;  ///< by rank, in chunks
};
/// `places` as SharedMachine.
[[nodiscard]] DirectRoutine make_direct_routine(std::span<const DirectProgram> programs, Rank rank,
                                                std::span<const CpuPlace> places = {});

/// What the calls that go through a SharedWindow have in common. One per SharedWindow.
struct DirectCount {
  const SharedMachine* machine = nullptr;  ///< null: nothing is known
  PutWays ways;                            ///< into this rank's slots
  bool kernel_refuses = false;             ///< somebody cannot read this rank's private memory
  std::uint64_t calls = 0;                 ///< counted alike by all ranks
  std::uint64_t tiles = 0;
  std::uint64_t moved_bytes = 0;  ///< of others' inputs that this rank read, and of outputs it made
  std::vector<std::uint64_t> passed;  ///< [world_size] tiles, at least, that each rank has passed
  std::uint64_t slots_until = 0;      ///< tiles below may be written into this rank's slots
  /// By schedule (Routine::hash) and size, a power of two: calls alike, by the communicator alike.
  std::map<std::pair<std::uint32_t, int>, CopyTuner> tuners;
};

/// One running call. Tile by tile, each rank (A) offers its input: by telling where it lies, or by
/// copying into its slots what others need; (B) does its moves once the inputs it reads are there,
/// storing into the outputs of others or, where it cannot reach them, into its slots; (C) collects
/// what others left for it in theirs. Which of the two is the owner's choice, buffer by buffer.
///
/// Calls of one tile whose input is copied for the others and whose results nobody collects are
/// run by a list of what to copy and fold that is made once for all calls alike
/// (direct_fast_path.cpp).
///
/// Reusable: reset() prepares it for the next.
class DirectExecution {
 public:
  /// True if the shared window can carry the call; alike on all ranks.
  [[nodiscard]] static bool fits(const DirectRoutine& routine, const Work& work,
                                 const SharedWindow& shared_window);

  /// Whether ranks read each other's ordinary buffers by the kernel, and not through slots.
  struct ByKernel {
    bool predicted = false;  ///< faster by what was measured of this host; nobody is forbidden to
    bool now = false;        ///< as far as calls alike have shown since
  };
  [[nodiscard]] static ByKernel reads_by_kernel(const Routine& routine, const Work& work,
                                                const DirectCount& count);

  void reset(std::shared_ptr<const Routine> routine, const Work& work, SharedWindow& shared_window,
             DirectCount& count);

  /// Prepares the next call, which differs from the last in its memory and its tag alone.
  void repeat(const std::byte* input, std::byte* output, std::uint32_t tag) {
    work_.input = input;
    work_.output = output;
    work_.tag = tag;
    begin();
  }

  /// Goes as far as it can without waiting; true if anything moved.
  bool step();
  [[nodiscard]] bool finished() const { return finished_; }
  /// The peer whose offer does not belong to this call, or -1.
  [[nodiscard]] Rank mismatch() const { return mismatch_; }
  [[nodiscard]] Waiting waiting() const;

 private:
  /// Up to this size a copy through the slots is faster than the answer to where a buffer lies.
  static constexpr std::size_t kAlwaysStaged = 1536;

  /// What a partner offered, and where that is in this process.
  struct Offered {
    bool known = false;
    Reference input;
    Reference output;
    bool restages = false;           ///< what this rank could not read
    std::byte* input_at = nullptr;   ///< null: staged, or private
    std::byte* output_at = nullptr;  ///< null: not offered
    const std::byte* payload = nullptr;
  };
  /// Where to tell others that a buffer lies: asked again only when the buffer changes.
  struct Known {
    const void* memory = nullptr;
    std::size_t size_bytes = 0;
    std::uint64_t generation = 0;
    Reference reference;
  };

  /// What step() does for a call on the fast path, as places relative to its memory.
  struct FastPath {
    /// From the input to where the others find it.
    struct Piece {
      std::size_t from = 0;
      std::size_t to = 0;
      std::size_t size_bytes = 0;
    };
    struct Source {
      Rank rank = 0;  ///< this one: `at` counts within the input, else within what it staged
      std::size_t at = 0;
    };
    struct Result {
      std::size_t at = 0;  ///< within the output
      std::size_t count = 0;
      std::size_t size_bytes = 0;
      std::size_t num_sources = 0;
    };
    std::vector<Piece> pieces;
    std::vector<Source> sources;  ///< of all results, one after another
    std::vector<Result> results;
    Fold fold;
    /// Lines of what a partner staged that are fetched while its offer is awaited.
    struct Ahead {
      std::size_t at = 0;
      std::size_t lines = 0;
    };
    std::vector<Ahead> ahead;       ///< [partners]
    std::uint64_t moved_bytes = 0;  ///< as DirectCount
  };

  void begin();
  void choose_tiles();
  [[nodiscard]] static CopyTimes predicted_times(const DirectRoutine& routine, const Work& work,
                                                 const DirectCount& count);
  void choose_way();
  void begin_tuning();
  void note_begun(const Offer& offer);
  [[nodiscard]] bool went_as_asked() const;
  void end_tuning();
  void choose_exposure();
  [[nodiscard]] bool changes_input() const;
  [[nodiscard]] bool make_fast_path();
  void look_ahead();
  [[nodiscard]] bool stays_staged();
  bool step_fast_path();
  [[nodiscard]] bool hear_fast_path();
  [[nodiscard]] const std::byte* staged_by(Rank rank) const;
  void fold_fast_path();
  [[nodiscard]] Reference refer(Known& known, const void* memory, std::size_t size_bytes);
  [[nodiscard]] bool may_write_slot(std::uint64_t tile);
  [[nodiscard]] bool stage();
  void copy_to_slot(int tile, std::byte* slot);
  void stage_bytes(std::byte* to, const std::byte* from, std::size_t bytes);
  void offer();
  [[nodiscard]] bool offers_known();
  void learn(Rank peer, const Offer& offer);
  [[nodiscard]] bool sources_staged(std::uint64_t tile);
  [[nodiscard]] bool fold_tile();
  [[nodiscard]] bool fetch_private(int tile);
  [[nodiscard]] bool read(const Place& place, int tile, std::byte* to, std::size_t bytes);
  [[nodiscard]] bool copies_by_kernel(const Move& move) const;
  [[nodiscard]] bool read_straight(const Move& move, int tile);
  [[nodiscard]] bool is_private(const Place& place) const;
  [[nodiscard]] bool make(const Move& move, int tile);
  [[nodiscard]] const std::byte* source(const Place& place, int tile);
  void restage_if_refused();
  [[nodiscard]] bool collect_tile();
  [[nodiscard]] bool left_alone();
  void take_lines_back() const;

  [[nodiscard]] std::size_t tile_elements(int tile) const;
  /// Which block of a buffer chunk `index` is of. Dividing by k takes as long as all the rest.
  [[nodiscard]] std::size_t block_of(int index) const {
    const auto i = static_cast<std::size_t>(index);
    return k_ == 1 ? i : i / k_;
  }
  /// Elements before chunk `index` mod k of a block, in this tile.
  [[nodiscard]] std::size_t ahead(int index, int tile) const;
  [[nodiscard]] std::size_t run_bytes(int chunk, int count, int tile) const;
  /// Bytes before place `index` of a user buffer, or of a slot.
  [[nodiscard]] std::size_t in_buffer(int index, int tile) const;
  [[nodiscard]] std::size_t in_slot(int index, int tile) const;

  std::shared_ptr<const Routine> routine_;
  const DirectRoutine* direct_ = nullptr;
  SharedWindow* shared_window_ = nullptr;
  Work work_;
  std::size_t element_bytes_ = 1;
  std::size_t k_ = 1;
  std::size_t tile_count_ = 0;  ///< elements of one block per tile
  int num_tiles_ = 1;
  bool in_offer_ = false;  // what is staged fits into the offer itself
  DirectCount* count_ = nullptr;
  std::uint64_t number_ = 0;  ///< of this call
  std::uint64_t base_ = 0;    ///< tiles before this call

  Reference input_;
  Reference output_;
  Known known_input_;
  Known known_output_;
  std::vector<Offered> offered_;  // [world_size]
  std::size_t num_known_ = 0;
  bool touches_ = false;      // memory of others outside their parts
  bool results_ = false;      // others collect from this rank's slots
  bool by_kernel_ = false;    // peers read the input themselves, wherever it lies
  bool restages_ = false;     // the input, which one of them could not read
  bool reads_ = false;        // this rank reads private memory of others
  bool was_exposed_ = false;  // others read the input itself, or did
  bool streams_ = false;      // the output is too large to be found in the cache afterwards
  bool offers_ = false;       // somebody waits for this rank's offer
  int staged_ = 0;            // tiles of this call
  int folded_ = 0;
  int collected_ = 0;
  bool finished_ = true;
  Rank mismatch_ = -1;
  Waiting waiting_;
  bool may_be_fast_ = false;  // but for where the buffers lie
  bool is_fast_ = false;
  FastPath fast_path_;
  std::vector<const void*> sources_;
  std::vector<void*> cached_, streamed_;
  std::vector<std::vector<std::byte>> fetched_;  // of private memory, this tile's, in their order
  std::size_t num_used_ = 0;                     // of these, by the moves so far
  std::vector<int> read_tiles_;  // by move: that the kernel has copied to where they belong

  CopyTuner* tuner_ = nullptr;  // DirectCount's, of by_kernel_; null: that is settled
  Rank tuning_rank_ = 0;        // whose tuner decides
  std::uint64_t advice_key_ = 0;
  bool is_timed_ = false;        // this call says when it began, or measures how long it takes
  bool all_tell_begin_ = false;  // the partners whose offers are known
  std::int64_t begun_ns_ = 0;    // the latest of this rank and of them; 0: not timed
};

}  // namespace chorus
