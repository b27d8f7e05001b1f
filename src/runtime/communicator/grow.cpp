// A communicator and processes that come to it make a larger one.
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/blob.hpp"
#include "base/counted.hpp"
#include "chorus/error.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/control/coordinator/host.hpp"
#include "runtime/control/meet.hpp"

namespace chorus {
namespace {

/// What each rank brings to the agreement on how to grow.
struct Growth {
  int world_size = 0;
  std::string id = {};   ///< or place; empty: another rank has it
  std::string why = {};  ///< this rank cannot
};

std::vector<std::byte> to_bytes(const Growth& growth) {
  BlobWriter blob;
  blob.u32(static_cast<std::uint32_t>(growth.world_size));
  blob.text(growth.id);
  blob.text(growth.why);
  return {blob.view().begin(), blob.view().end()};
}

/// What all agree on. Throws BootstrapError alike on all ranks where they do not.
Growth agreed(const Table& blobs) {
  Growth all;
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    BlobReader reader(blobs[r]);
    Growth each{.world_size = static_cast<int>(reader.u32())};
    each.id = reader.text();
    each.why = reader.text();
    if (!reader.ok()) throw BootstrapError(fmt::format("rank {} sent a malformed growth", r));
    if (!each.why.empty()) throw BootstrapError(fmt::format("rank {}: {}", r, each.why));
    if (r == 0) all.world_size = each.world_size;
    if (each.world_size != all.world_size) {
      throw BootstrapError(fmt::format("grow(): rank {} grows to {}, but rank 0 to {}", r,
                                       counted(each.world_size, "rank"), all.world_size));
    }
    if (each.id.empty() || each.id == all.id) continue;
    if (!all.id.empty()) {
      throw BootstrapError(fmt::format(
          "grow(): rank {} has another id than a rank before it: make one and hand it to all", r));
    }
    all.id = each.id;
  }
  if (all.id.empty()) {
    throw BootstrapError(
        "grow(): no rank has an id: one gives that of UniqueId::make(world_size), which the new "
        "processes join");
  }
  return all;
}

}  // namespace

std::unique_ptr<Communicator::Impl> Communicator::Impl::grow(const std::string& id, int world_size,
                                                             const Options& with) {
  const int now = static_cast<int>(place.members.size());
  if (world_size <= now) {
    throw InputError(
        fmt::format("grow() to {}: this communicator has {}, and the grown one must have more",
                    counted(world_size, "rank"), now));
  }
  if (!id.empty()) (void)net::Id::parse(id);
  const auto blobs = exchange(fmt::format("grow{}", grows++), "grow()",
                              to_bytes({.world_size = world_size, .id = id, .why = {}}));
  return join_grown(agreed(blobs).id, world_size, with);
}

// New processes come with the options by which this job was started.
Options Communicator::Impl::options_of_grown() const {
  Options then = options;
  then.probe_ms = joined_probe_ms;
  return then;
}

std::unique_ptr<Communicator::Impl> Communicator::Impl::join_grown(const std::string& id,
                                                                   int world_size,
                                                                   const Options& with) const {
  Options options_then = without_files(with);
  options_then.rejoin = false;
  // A member that dies on its way there is not waited for: here its death is told.
  const auto is_in_vain = [this](int grace_ms) {
    if (grace_ms > 0) return control->await_verdict(place.key, grace_ms);
    control->poll();
    return control->verdict(place.key);
  };
  auto grown = join(id, place.rank, world_size, keep_alive, options_then, is_in_vain);
  grown->options.rejoin = with.rejoin;
  return grown;
}

int Communicator::Impl::num_waiting() const {
  const net::Id id = net::Id::parse(met_at);
  return net::ask_room(id, {.secret = id.secret, .wish = wire::Wish::count},
                       options.join_timeout_ms)
      .waiting;
}

// Rank 0 makes the coordinator of the grown communicator and tells the waiting room. Where the
// ranks then fail to agree its coordinator ends, by which those that came to it know.
std::unique_ptr<Communicator::Impl> Communicator::Impl::take_in(int count) {
  if (count < 1) {
    throw InputError(fmt::format("take_in({}): a number of processes, at least 1", count));
  }
  const int now = static_cast<int>(place.members.size());
  const net::Id met = net::Id::parse(met_at);
  Growth mine{.world_size = now + count};
  std::unique_ptr<Coordinator> coordinator;
  if (place.rank == 0) {
    try {
      const Secret tag = Secret::random();
      coordinator = std::make_unique<Coordinator>(mine.world_size, control->local_address(), 0,
                                                  met.secret.derive("grown " + tag.text()));
      mine.id = net::Id{net::Id::parse(coordinator->id()).endpoint, tag}.text();
      (void)net::ask_room(met,
                          {.rank = now,
                           .world_size = mine.world_size,
                           .secret = met.secret,
                           .wish = wire::Wish::offer,
                           .place = mine.id},
                          options.join_timeout_ms);
    } catch (const BootstrapError& error) {
      mine.why = error.what();
    }
  }
  const auto blobs = exchange(fmt::format("grow{}", grows++), "take_in()", to_bytes(mine));
  const std::string id = net::grown_id(met.secret, agreed(blobs).id).text();
  // It stays where ranks fail to meet, too: it tells those that come after that why.
  if (coordinator) keep_coordinator(std::move(coordinator));
  auto grown = join_grown(id, mine.world_size, options_of_grown());
  grown->met_at = met_at;
  return grown;
}

Communicator Communicator::grow(const UniqueId& id, int world_size) {
  return grow(id, world_size, impl().options_of_grown());
}

Communicator Communicator::grow(const UniqueId& id, int world_size, const Options& options) {
  impl().require_sound();
  return Communicator(impl().grow(id.text, world_size, options));
}

int Communicator::num_waiting() const {
  impl().require_own_process();
  return impl().num_waiting();
}

Communicator Communicator::take_in(int count) {
  impl().require_sound();
  return Communicator(impl().take_in(count));
}

bool Communicator::was_taken_in() const { return impl().control->was_taken_in(); }

}  // namespace chorus
