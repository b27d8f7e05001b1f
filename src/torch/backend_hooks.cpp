// What torch's flight recorder wants of a backend (c10d's Hooks.hpp).
#include <ATen/Context.h>

#include <utility>

#include "backend.hpp"

#ifdef CHORUS_TORCH_HAS_HOOKS
namespace chorus_torch {

// Nobody watches what is in a GPU's streams, and who is told of no end takes a call for one that
// hangs: better that torch expects none.
bool Backend::supportsCompletionHooks() const { return !at::hasCUDA(); }

void Backend::registerCompletionHook(int64_t id, c10d::CompletionHook hook) {
  hooks_->on_completion(id, [hook = std::move(hook)](std::uint64_t key) {
    hook({.completionKey = key, .duration_ms = std::nullopt});
  });
}

void Backend::unregisterCompletionHook(int64_t id) { hooks_->forget_completion(id); }

void Backend::registerAbortHook(int64_t id, c10d::AbortHook hook) {
  hooks_->on_abort(id, std::move(hook));
}

void Backend::unregisterAbortHook(int64_t id) { hooks_->forget_abort(id); }

}  // namespace chorus_torch
#endif
