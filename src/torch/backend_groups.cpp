// How a group is made, and what becomes of it.
#include <algorithm>
#include <utility>

#include "backend.hpp"
#include "work.hpp"

namespace chorus_torch {

c10::intrusive_ptr<Base> Backend::make(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                       int size, std::chrono::milliseconds timeout,
                                       Identity identity) {
  try {
    auto group = Group::meet(store, rank, size, timeout, identity.address);
    return c10::make_intrusive<Backend>(std::move(group), rank, size, std::move(identity));
  } catch (const chorus::Error& error) {
    throw_torch(error.what());
  }
}

void Backend::monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) {
  try {
    const bool unset = options.timeout == c10d::kUnsetTimeout;
    group_->monitored_barrier(unset ? group_->timeout() : options.timeout, wait_all_ranks);
  } catch (const chorus::Error& error) {
    throw_torch(error.what());
  }
}

#if TORCH_VERSION_MAJOR >= 2
c10::intrusive_ptr<Backend::Options> Backend::getBackendOptions() {
  auto options = c10::make_intrusive<Options>(getBackendName(), group_->timeout());
  // As far as this torch's options have them.
  const auto describe = [&](auto& known) {
    if constexpr (requires { known.group_name = std::string(); }) {
      known.group_name = identity_.name;
    }
    if constexpr (requires { known.global_ranks_in_group = std::vector<std::uint64_t>(); }) {
      known.global_ranks_in_group = identity_.global_ranks;
    }
  };
  describe(*options);
  return options;
}

c10::intrusive_ptr<c10d::Backend> Backend::split(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<int>& ranks,
                                                 const c10::intrusive_ptr<Options>& options) {
  const auto mine = std::ranges::find(ranks, rank_);
  if (mine == ranks.end()) return nullptr;
  Identity part{
      .backend = identity_.backend, .name = {}, .global_ranks = {}, .address = identity_.address};
  for (const int rank : ranks) {
    const auto at = static_cast<std::size_t>(rank);
    part.global_ranks.push_back(identity_.global_ranks.empty() ? at
                                                               : identity_.global_ranks.at(at));
  }
  const auto name_of = [](const auto& known) -> std::string {
    if constexpr (requires { known.group_name; }) return known.group_name;
    return {};
  };
  if (options) part.name = name_of(*options);
  return make(store, static_cast<int>(mine - ranks.begin()), static_cast<int>(ranks.size()),
              options ? options->timeout : group_->timeout(), std::move(part));
}

c10::intrusive_ptr<c10d::Backend> Backend::merge(const c10::intrusive_ptr<c10d::Store>& store,
                                                 const c10::intrusive_ptr<Options>& options,
                                                 const int& rank, const int& size) {
  return make(
      store, rank, size, options ? options->timeout : group_->timeout(),
      {.backend = identity_.backend, .name = {}, .global_ranks = {}, .address = identity_.address});
}

void Backend::setTimeout(std::chrono::milliseconds timeout) {
  try {
    group_->set_timeout(timeout);
  } catch (const chorus::Error& error) {
    throw_torch(error.what());
  }
}

c10::intrusive_ptr<c10d::Backend> Backend::shrink(const std::vector<int64_t>& excluded, int flags,
                                                  const c10::intrusive_ptr<Options>& options) {
  if (flags != 0) group_->abort("rank " + std::to_string(rank_) + " shrinks the process group");
  Identity smaller{
      .backend = identity_.backend, .name = {}, .global_ranks = {}, .address = identity_.address};
  for (int64_t rank = 0; rank < size_; ++rank) {
    if (std::ranges::find(excluded, rank) != excluded.end()) continue;
    const auto at = static_cast<std::size_t>(rank);
    smaller.global_ranks.push_back(identity_.global_ranks.empty() ? at
                                                                  : identity_.global_ranks.at(at));
  }
  try {
    auto group =
        group_->shrink(excluded, options ? options->timeout : group_->timeout(), identity_.address);
    const int rank = group->rank();
    const int size = group->size();
    return c10::make_intrusive<Backend>(std::move(group), rank, size, std::move(smaller));
  } catch (const chorus::Error& error) {
    throw_torch(error.what());
  }
}

#ifdef CHORUS_TORCH_HAS_ERROR_TYPE
c10d::ErrorType Backend::getError() {
  return group_->failure() ? c10d::ErrorType::COMM_ERROR : c10d::ErrorType::SUCCESS;
}
#endif

void Backend::abort() {
  group_->abort("rank " + std::to_string(rank_) + " aborted the process group");
}
#endif

}  // namespace chorus_torch
