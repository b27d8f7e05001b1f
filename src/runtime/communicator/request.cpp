// Calls under way: requests, waiting for several, the calls of a group until it ends.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "runtime/communicator/impl.hpp"

namespace chorus {

Request::Impl::Impl(Communicator::Impl& owner)
    : communicator(&owner), next_(std::exchange(owner.open_requests, this)) {
  if (next_ != nullptr) next_->previous_ = this;
}

void Request::Impl::let_go() {
  if (communicator == nullptr) return;
  (previous_ == nullptr ? communicator->open_requests : previous_->next_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  communicator = nullptr;
}

void Request::Impl::outlive(const std::string& failure) {
  if (!std::ranges::all_of(jobs, &Job::complete)) failure_ = failure;
  jobs.clear();
  let_go();
}

void Request::Impl::require_complete() const {
  if (!failure_.empty()) throw CollectiveError(failure_);
}

Visit::Visit(Communicator::Impl& communicator) : communicator_(communicator) {
  communicator.require_own_process();
  if (communicator.visited.load(std::memory_order_relaxed)) {
    throw InputError(
        "two threads use one communicator at the same time: give each a communicator of its own "
        "(split()), or let only one call at a time");
  }
  communicator.visited.store(true, std::memory_order_relaxed);
}

GroupedCall::GroupedCall(const Call& given) : call(given) {
  if (given.kind != Call::Kind::all_to_all_v) return;
  std::size_t total = 0;
  const auto lists = {&call.send_counts, &call.send_offsets, &call.recv_counts, &call.recv_offsets};
  for (const auto* list : lists) total += list->size();
  counts_.reserve(total);
  for (auto* list : lists) {
    const std::size_t begin = counts_.size();
    counts_.insert(counts_.end(), list->begin(), list->end());
    *list = std::span(counts_).subspan(begin, list->size());
  }
}

Request::Request() = default;
Request::Request(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Request::Request(Request&&) noexcept = default;

Request& Request::operator=(Request&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

Request::~Request() {
  try {
    wait();
  } catch (const Error&) {
    // Whoever wanted to know has called wait(); the communicator keeps the failure.
  }
}

void Request::wait() {
  if (!impl_) return;
  if (impl_->communicator == nullptr) {
    settle();
    return;
  }
  const Visit visit(*impl_->communicator);
  const auto impl = std::move(impl_);
  impl->communicator->finish(impl->jobs);
}

bool Request::test() { return look(true); }

bool Request::poll() { return look(false); }

bool Request::look(bool give_way) {
  if (!impl_) return true;
  if (impl_->communicator == nullptr) return settle();
  {
    const Visit visit(*impl_->communicator);
    if (!impl_->communicator->test(impl_->jobs, give_way)) return false;
  }
  impl_.reset();
  return true;
}

// True, and the request given up, if its call is complete.
bool Request::settle() {
  if (!impl_) return true;
  if (impl_->communicator == nullptr) {
    const auto impl = std::move(impl_);
    impl->require_complete();
    return true;
  }
  if (!impl_->communicator->collect(impl_->jobs)) return false;
  impl_.reset();
  return true;
}

// One round over the communicators of `requests`, none of which is null; at least one is open.
void Request::turn(std::span<Request* const> requests) {
  thread_local std::vector<Engine::Pending> pending;
  pending.clear();
  for (const Request* request : requests) {
    if (!request->impl_ || request->impl_->communicator == nullptr) continue;
    request->impl_->communicator->require_own_process();
    Engine* const engine = request->impl_->communicator->engine.get();
    const auto same = [&](const Engine::Pending& other) { return other.engine == engine; };
    if (std::ranges::any_of(pending, same)) continue;
    const auto open = std::ranges::find(request->impl_->jobs, false, &Job::complete);
    if (open != request->impl_->jobs.end()) pending.push_back({engine, *open});
  }
  if (!pending.empty()) Engine::turn(pending);
}

namespace {

void require_requests(const char* what, std::span<Request* const> requests) {
  const auto null = std::ranges::find(requests, nullptr);
  if (null == requests.end()) return;
  throw InputError(
      fmt::format("{}: the pointer to request {} is null", what, null - requests.begin()));
}

}  // namespace

std::size_t wait_any(std::span<Request* const> requests) {
  if (requests.empty()) throw InputError("wait_any: there is no request to wait for");
  require_requests("wait_any", requests);
  for (;; Request::turn(requests)) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (requests[i]->settle()) return i;
    }
  }
}

void wait_all(std::span<Request* const> requests) {
  require_requests("wait_all", requests);
  for (;; Request::turn(requests)) {
    bool all = true;
    for (Request* request : requests) all = request->settle() && all;
    if (all) return;
  }
}

}  // namespace chorus
