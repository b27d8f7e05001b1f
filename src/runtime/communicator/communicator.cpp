#include "chorus/communicator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/blob.hpp"
#include "base/counted.hpp"
#include "base/hash.hpp"
#include "runtime/communicator/impl.hpp"
#include "runtime/engine/call.hpp"
#include "runtime/engine/kept_call.hpp"

namespace chorus {

namespace {

/// Of explain(): what a call that survivors can finish copies before it begins.
std::string kept_bytes(const Call& call, Rank rank, int world_size) {
  const std::size_t bytes = overwritten_bytes(call, rank, static_cast<std::size_t>(world_size));
  return bytes == 0 ? "" : fmt::format(", and a copy of {} bytes of input", bytes);
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Communicator::Communicator(Communicator&&) noexcept = default;

Communicator& Communicator::operator=(Communicator&& other) noexcept {
  if (this == &other) return *this;
  const Communicator before(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}

Communicator::Impl& Communicator::impl() const {
  if (impl_) [[likely]]
    return *impl_;
  throw InputError(
      "this communicator has been moved from: use the one it was moved to, or assign another one "
      "to it");
}

Communicator::~Communicator() {
  // What a forked child has is its parent's: connections to say goodbye over, shared memory.
  if (impl_ && !impl_->of_this_process()) (void)impl_.release();
  if (impl_ && impl_->finishes) finish_last();
}

Communicator Communicator::join(const Options& options) {
  return Communicator(Impl::join(options));
}

Communicator Communicator::join(const UniqueId& id, Rank rank, int world_size,
                                const Options& options) {
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    throw InputError(fmt::format("rank {} of {}: ranks are 0 to world_size - 1", rank, world_size));
  }
  return Communicator(Impl::join(id.text, rank, world_size, nullptr, options));
}

Rank Communicator::rank() const { return impl().place.rank; }

int Communicator::world_size() const { return static_cast<int>(impl().place.members.size()); }

const Topology& Communicator::topology() const { return impl().selector->topology(); }

Traffic Communicator::traffic() const { return impl().traffic(); }

std::optional<Communicator> Communicator::split(int color, int key) {
  impl().require_sound();
  const GroupPlace& place = impl().place;
  const int number = impl().splits++;
  BlobWriter mine;
  mine.u32(static_cast<std::uint32_t>(color));
  mine.u32(static_cast<std::uint32_t>(key));
  const auto blobs = impl().exchange(fmt::format("split{}", number), "split()", mine.view());
  struct Wish {
    int key;
    Rank rank;
  };
  std::vector<Wish> chosen;
  for (std::size_t r = 0; r < blobs.size(); ++r) {
    BlobReader reader(blobs[r]);
    const int their_color = static_cast<int>(reader.u32());
    const int their_key = static_cast<int>(reader.u32());
    if (!reader.ok()) throw BootstrapError(fmt::format("rank {} sent a malformed split", r));
    if (their_color == color) chosen.push_back({their_key, static_cast<Rank>(r)});
  }
  if (color < 0) return std::nullopt;
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const Wish& a, const Wish& b) { return a.key < b.key; });
  GroupPlace mine_now{.key = child_key(place.key, fmt::format(".{}c{}", number, color)),
                      .oversubscribed = impl().engine->oversubscribed()};
  for (std::size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i].rank == place.rank) mine_now.rank = static_cast<Rank>(i);
    mine_now.members.push_back(place.members[static_cast<std::size_t>(chosen[i].rank)]);
  }
  return Communicator(impl().part(std::move(mine_now)));
}

// Reads only what stays as it is while calls are under way, and the control connection, which any
// thread may use.
Communicator Communicator::group(std::span<const Rank> members, std::string_view name,
                                 int timeout_ms) const {
  const Impl& mine = impl();
  mine.require_own_process();
  const GroupPlace& place = mine.place;
  GroupPlace part{.key = child_key(place.key, fmt::format(".group-{}", name)),
                  .rank = -1,
                  .oversubscribed = mine.engine->oversubscribed()};
  std::vector<bool> named(place.members.size());
  for (const Rank rank : members) {
    if (rank < 0 || rank >= world_size() || named[static_cast<std::size_t>(rank)]) {
      throw InputError(
          fmt::format("group '{}': rank {} {}", name, rank,
                      rank < 0 || rank >= world_size()
                          ? fmt::format("does not exist: there are 0 to {}", world_size() - 1)
                          : "is named twice"));
    }
    named[static_cast<std::size_t>(rank)] = true;
    if (rank == place.rank) part.rank = static_cast<Rank>(part.members.size());
    part.members.push_back(place.members[static_cast<std::size_t>(rank)]);
  }
  if (part.rank < 0) {
    throw InputError(
        fmt::format("group '{}': rank {} calls it, but is not a member", name, place.rank));
  }
  return Communicator(mine.part(std::move(part), timeout_ms));
}

Communicator Communicator::shrink(std::span<const Rank> excluded) {
  const GroupPlace& place = impl().place;
  GroupPlace smaller{.oversubscribed =
                         place.oversubscribed};  // of this one's ranks the others are gone
  std::vector<bool> leaves(place.members.size());
  for (const Rank rank : excluded) {
    if (rank < 0 || rank >= world_size()) {
      throw InputError(fmt::format("rank {} cannot be excluded: the communicator has ranks 0 to {}",
                                   rank, world_size() - 1));
    }
    if (rank == place.rank || leaves[static_cast<std::size_t>(rank)]) {
      throw InputError(
          fmt::format("rank {} is {}", rank,
                      rank == place.rank
                          ? "excluded but calls shrink(), which only the remaining ranks may call"
                          : "excluded twice"));
    }
    leaves[static_cast<std::size_t>(rank)] = true;
  }
  for (std::size_t r = 0; r < leaves.size(); ++r) {
    if (leaves[r]) continue;
    if (static_cast<Rank>(r) == place.rank) {
      smaller.rank = static_cast<Rank>(smaller.members.size());
    }
    smaller.members.push_back(place.members[r]);
  }
  // Ranks that exclude each other make several communicators at once: each has a name of its own.
  Fnv1a hash;
  for (const Rank member : smaller.members) hash.word(static_cast<std::uint64_t>(member));
  const int before = impl().shrinks[hash.value()]++;
  smaller.key = child_key(place.key, fmt::format(".shrunk{}-{:x}", before, hash.value()));
  auto part = impl().part(std::move(smaller));
  impl().control->survived();
  return Communicator(std::move(part));
}

Request Communicator::start(const Call& call) {
  std::unique_ptr<Request::Impl> request;
  survivably([&] {
    Impl& mine = impl();
    if (is_message(call.kind) && mine.message_at_once(call, false)) return;
    request = std::make_unique<Request::Impl>(mine);
    mine.launch(call, request->jobs);
    mine.announce(call);
  });
  return request ? Request(std::move(request)) : Request();
}

void Communicator::run(const Call& call) {
  Impl& mine = impl_ ? *impl_ : impl();
  if (mine.detours > 0) return run_aside(call);
  const Visit visit(mine);
  mine.run(call);
}

bool Communicator::has_message(Rank from) {
  Impl& mine = impl();
  if (from < 0 || from >= world_size() || from == rank()) {
    throw InputError(fmt::format("has_message: rank {} can have no message for rank {} of {}", from,
                                 rank(), world_size()));
  }
  const Visit visit(mine);
  mine.require_sound();
  return mine.has_message(from);
}

void Communicator::announce_end() {
  Impl& mine = impl();
  const Visit visit(mine);
  if (!mine.group_calls.empty()) throw InputError("announce_end() before group_end()");
  if (!mine.engine->failure() && !mine.aborted) mine.announce_end();
}

void Communicator::group_start() {
  ++impl().group_depth;
  ++impl().detours;
}

void Communicator::group_end() {
  if (impl().group_depth == 0) throw InputError("group_end() without group_start()");
  --impl().detours;
  if (--impl().group_depth > 0) return;
  survivably([this] { impl().run_group(); });
}

void Communicator::abort(std::string_view reason) {
  impl().aborted.store(true, std::memory_order_relaxed);
  impl().control->abort(impl().place.key, reason);
}

// The engine reads it anew whenever it has waited.
void Communicator::set_timeout_ms(int timeout_ms) {
  if (timeout_ms <= 0) {
    throw InputError(fmt::format("a timeout of {} ms: it must be positive", timeout_ms));
  }
  const Visit visit(impl());
  impl().options.timeout_ms = timeout_ms;
}

std::optional<std::string> Communicator::failure() const {
  impl().control->poll();
  return impl().control->verdict(impl().place.key);
}

void Communicator::use(const Plan& plan) {
  if (plan.world_size != world_size()) {
    throw InputError(fmt::format("the plan is for {}, but this communicator has {}",
                                 counted(plan.world_size, "rank"), world_size()));
  }
  for (const PlanEntry& entry : plan.entries) {
    if (const auto fault = first_fault(entry.schedule)) {
      throw SynthesisError(fmt::format("schedule '{}' is wrong: {}", entry.schedule.name, *fault));
    }
  }
  impl().require_sound();
  impl().use(plan);
}

void Communicator::await_plan() {
  impl().require_sound();
  impl().await_plan();
}

bool Communicator::reprobe() {
  impl().require_sound();
  return impl().reprobe();
}

std::string Communicator::explain(const Call& call) const {
  check_kind(call);
  if (call.kind > Call::Kind::barrier) {
    return fmt::format("{} goes straight to its peers\n", signature(call));
  }
  return impl().selector->explain(collective_of(call).kind, size_bytes_of(call, world_size())) +
         impl().explain_buffers(call) +
         (impl().finishes
              ? fmt::format("  on loss, finish: {:.2f} us for the barrier behind it{}\n",
                            impl().selector->predicted_s(CollectiveKind::barrier, 0) * 1e6,
                            kept_bytes(call, rank(), world_size()))
              : "") +
         (impl().is_planning()
              ? "  for now: schedules for the network are being made (await_plan())\n"
              : "");
}

double Communicator::predicted_s(const Call& call) {
  check_kind(call);
  if (call.kind > Call::Kind::barrier) return 0;
  check_call(call, rank(), world_size());
  return impl().selector->predicted_s(collective_of(call).kind, size_bytes_of(call, world_size()));
}

// A call that is refused takes its group with it: left open by whoever catches this, the group
// would swallow all later calls.
void Communicator::require(bool condition, const char* why) {
  if (condition) return;
  impl().detours -= std::exchange(impl().group_depth, 0);
  impl().group_calls.clear();
  throw InputError(why);
}

// Lists that are too short are named by check_call().
bool Communicator::inside(std::span<const std::size_t> counts, std::span<const std::size_t> offsets,
                          std::size_t size) {
  for (std::size_t i = 0; i < std::min(counts.size(), offsets.size()); ++i) {
    if (counts[i] > 0 && (offsets[i] > size || counts[i] > size - offsets[i])) return false;
  }
  return true;
}

}  // namespace chorus
