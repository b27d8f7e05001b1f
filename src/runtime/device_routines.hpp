// Which programs run on the GPU, made ready in its memory at their first call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "chorus/plan.hpp"
#include "device/driver.hpp"
#include "device/image.hpp"

namespace chorus {

/// A program in device memory.
struct DeviceRoutine {
  std::string name;
  device::Figures figures;
  std::uint32_t num_lanes = 1;  ///< of this rank
  std::uint64_t program = 0;    ///< address of its image
  std::uint64_t direct = 0;     ///< of its direct form's, or 0
  bool copy_in_place = false;   ///< DirectProgram::copy_in_place
  std::uint32_t hash = 0;
};

/// Device memory that is filled once and kept. Uploads do not wait for what other streams do: a
/// kernel there may be waiting for this very rank.
class ImageStore {
 public:
  /// `context` must be current, here and in keep().
  ImageStore();
  [[nodiscard]] std::uint64_t keep(const device::Image& image);

 private:
  cuda::Stream stream_;
  std::vector<cuda::Memory> blocks_;
  std::uint64_t next_ = 0;
  std::uint64_t left_ = 0;
};

/// Chooses by kind and size, the same on all ranks: the plan's schedules where there are any, else
/// one step for few bytes and two for many.
class DeviceRoutines {
 public:
  /// Calls of at most `one_shot_bytes` · ranks bytes take one step where two would move less.
  DeviceRoutines(Plan plan, int world_size, Rank rank, int slots, std::uint64_t one_shot_bytes)
      : plan_(std::move(plan)),
        world_size_(world_size),
        rank_(rank),
        slots_(slots),
        one_shot_bytes_(one_shot_bytes) {}

  /// `size_bytes` counted as PlanEntry does. Throws SynthesisError if a schedule is wrong.
  [[nodiscard]] const DeviceRoutine& choose(Collective collective, std::uint64_t size_bytes,
                                            ImageStore& store);
  /// One message to or from `peer`.
  [[nodiscard]] const DeviceRoutine& message(Rank peer, bool sending, ImageStore& store);

 private:
  [[nodiscard]] DeviceRoutine make(const Schedule& schedule, ImageStore& store) const;

  Plan plan_;
  int world_size_;
  Rank rank_;
  int slots_;
  std::uint64_t one_shot_bytes_;
  /// By kind, root and index of the plan's entry (−1, −2: one step, two).
  std::map<std::tuple<CollectiveKind, Rank, int>, DeviceRoutine> collectives_;
  std::map<std::pair<Rank, bool>, DeviceRoutine> messages_;
};

}  // namespace chorus
