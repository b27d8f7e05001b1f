// Which programs run on the GPU, made ready in its memory at their first call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "device/driver/driver.hpp"
#include "device/image.hpp"
#include "runtime/selection/selection.hpp"

namespace chorus {

/// A program in device memory.
struct DeviceRoutine {
  std::string name;
  device::Figures figures;
  std::vector<std::uint32_t> lane_ports;  ///< of this rank's lanes
  std::uint64_t program = 0;              ///< address of its image
  std::uint64_t direct = 0;               ///< of its direct form's, or 0
  bool copy_in_place = false;             ///< DirectProgram::copy_in_place
  std::uint32_t hash = 0;
};

/// Device memory that is filled once and kept. Uploads do not wait for what other streams do: a
/// kernel there may be waiting for this very rank.
class ImageStore {
 public:
  /// `context` is current, here and in the destructor.
  explicit ImageStore(cuda::Context context);
  [[nodiscard]] std::uint64_t keep(const device::Image& image);
  /// Idle between calls.
  [[nodiscard]] cuda::StreamHandle stream() const { return stream_.get(); }

 private:
  void grow(std::uint64_t size_bytes);

  cuda::Context context_;
  cuda::Stream stream_;
  std::vector<cuda::Memory> blocks_;
  std::uint64_t next_ = 0;
  std::uint64_t left_ = 0;
};

/// The programs of the schedules that are chosen, the same on all ranks.
class DeviceRoutines {
 public:
  DeviceRoutines(Selection selection, Rank rank, int slots)
      : selection_(std::move(selection)), rank_(rank), slots_(slots) {}

  /// `size_bytes` counted as PlanEntry does. Throws SynthesisError if a schedule is wrong.
  [[nodiscard]] const DeviceRoutine& choose(Collective collective, std::uint64_t size_bytes,
                                            ImageStore& store);
  /// The schedule of this name, of the plan or of algorithms(). Throws InputError if there is none
  /// or it does not serve.
  [[nodiscard]] const DeviceRoutine& choose(Collective collective, const std::string& name,
                                            ImageStore& store);
  /// One message to or from `peer`.
  [[nodiscard]] const DeviceRoutine& message(Rank peer, bool sending, ImageStore& store);
  [[nodiscard]] Selection& selection() { return selection_; }

 private:
  [[nodiscard]] DeviceRoutine make(const Schedule& schedule, ImageStore& store) const;

  Selection selection_;
  Rank rank_;
  int slots_;
  /// By kind, root and Selection::entry_for().
  std::map<std::tuple<CollectiveKind, Rank, std::size_t>, DeviceRoutine> collectives_;
  std::map<std::tuple<CollectiveKind, Rank, std::string>, DeviceRoutine> named_;
  std::map<std::pair<Rank, bool>, DeviceRoutine> messages_;
};

}  // namespace chorus
