// What a DeviceCommunicator keeps between calls, and how it makes one ready.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/communicator/impl.hpp"
#include "runtime/gpu/communicator.hpp"
#include "runtime/gpu/memory.hpp"
#include "runtime/gpu/order.hpp"
#include "runtime/gpu/routines.hpp"
#include "runtime/gpu/sharing.hpp"
#include "runtime/gpu/watch.hpp"
#include "runtime/gpu/world.hpp"

namespace chorus {

struct DeviceCommunicator::Impl {
  Impl(Communicator::Impl& communicator, int ordinal, const DeviceTuning& tuning_given);
  ~Impl();

  void set_up();
  void enqueue(std::span<const DeviceCall> group);
  bool share(void* memory, std::size_t size_bytes, std::shared_ptr<void> keep);
  void leave();
  [[nodiscard]] bool goodbye(const char* what);

  /// What one call adds to a launch.
  struct Prepared {
    device::CallArguments arguments{};
    std::uint32_t works = 0;  ///< lanes, over all instances; 0: a message
    std::span<const std::uint32_t> lane_ports;
    std::string_view schedule;
  };
  /// Where the calls of one enqueue() go.
  struct Enqueuing {
    cuda::StreamHandle stream;
    cuda::CurrentOnDemand& context;
  };
  Prepared prepare(const DeviceCall& call, const BufferPlaces& places, const Enqueuing& where);
  Prepared prepare_message(const DeviceCall& call);
  void place_input(const Call& call, const DeviceRoutine& routine, Prepared& prepared,
                   BufferPlaces& places, const Enqueuing& where);
  void expose(const Call& call, const BufferPlaces& places, const DeviceRoutine& routine,
              device::CallArguments& arguments) const;
  void tell(const Prepared& prepared, const DeviceCall& call) const;
  void launch(std::vector<Prepared>& calls, const Enqueuing& where);
  void number_works(std::vector<Prepared>& calls, std::uint32_t& phases, std::uint32_t& blocks);
  std::uint64_t room_for_scratch(std::size_t bytes);
  struct Room {
    std::uint64_t address;
    bool peers_reach;
  };
  /// For a copy of what the group under way reads.
  Room room_for_copy(std::size_t bytes);
  void check_room(std::span<const Prepared> calls, std::uint32_t phases,
                  std::uint32_t blocks) const;
  void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes, const Enqueuing& where);
  /// Some rank may go without copies: what peers reach of this one's buffers must be known.
  [[nodiscard]] bool may_be_direct(const Call& call) const;

  Communicator::Impl& base;
  std::string group;
  int device;
  DeviceTuning tuning;
  device::Limits limits;
  cuda::PrimaryContext context;
  // Below: made and destroyed while the context is current.
  std::unique_ptr<DeviceWorld> world;
  std::unique_ptr<ImageStore> store;
  std::unique_ptr<DeviceRoutines> routines;
  std::unique_ptr<DeviceOrder> order;
  std::vector<cuda::Memory> scratch;  ///< the last one is in use; graphs may hold the others
  std::size_t scratch_size = 0;
  cuda::Memory reached_copies;             ///< inputs that are copied, where peers reach them
  std::size_t copies_used = 0;             ///< of it, by the group under way
  std::vector<cuda::Memory> local_copies;  ///< as scratch: what goes beyond it
  std::size_t local_copies_size = 0;
  std::size_t local_copies_used = 0;
  std::unique_ptr<DeviceSharing> sharing;  ///< null where it would serve nobody
  std::unique_ptr<DeviceWatch> watch;      // listens for the above

  [[nodiscard]] std::uint32_t segment_of(const MemoryPlace& place, std::uint64_t address,
                                         std::size_t bytes) const;

  std::uint64_t sequence = 0;
};

}  // namespace chorus
