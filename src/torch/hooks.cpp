#include "hooks.hpp"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <system_error>
#include <thread>
#include <utility>

namespace chorus_torch {
namespace {

// A hook that hangs must not hold up the end of the process for ever.
constexpr auto kPatience = std::chrono::seconds(30);

// The call is over whatever becomes of who watched it.
template <class Hook, class... Arguments>
void call_hook(const Hook& hook, Arguments... arguments) {
  try {
    hook(arguments...);
  } catch (...) {
  }
}

/// Threads that nobody joins, but that can be waited for. In a forked child there are none.
class Beside {
 public:
  static Beside& of_process() {
    static auto* const one = new Beside;  // used while the process ends
    return *one;
  }

  void run(std::function<void()> work) {
    {
      const std::lock_guard lock(mutex_);
      running_ = process_.exchange(::getpid()) == ::getpid() ? running_ + 1 : 1;
    }
    try {
      std::thread([this, work] {
        work();
        end();
      }).detach();
    } catch (const std::system_error&) {  // no further thread can be had
      work();
      end();
    }
  }

  void wait() {
    if (process_ != ::getpid()) return;
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, kPatience, [&] { return running_ == 0; });
  }

 private:
  void end() {
    const std::lock_guard lock(mutex_);
    --running_;
    ended_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;
  std::atomic<int> process_ = 0;
};

}  // namespace

void Hooks::on_completion(std::int64_t id, Completion hook) {
  set(completion_, id, std::move(hook));
}

void Hooks::on_abort(std::int64_t id, Abort hook) { set(abort_, id, std::move(hook)); }

void Hooks::forget_completion(std::int64_t id) { set(completion_, id, Completion()); }

void Hooks::forget_abort(std::int64_t id) { set(abort_, id, Abort()); }

std::uint64_t Hooks::new_key() {
  static std::atomic<std::uint64_t> last = 0;
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

// An empty one is none.
template <class Hook>
void Hooks::set(Table<Hook>& table, std::int64_t id, Hook hook) {
  const std::lock_guard lock(mutex_);
  auto changed = *table;
  changed.erase(id);
  if (hook) changed.emplace(id, std::move(hook));
  table = std::make_shared<std::map<std::int64_t, Hook>>(std::move(changed));
  awaited_ = !completion_->empty();
}

template <class Hook>
Hooks::Table<Hook> Hooks::all(const Table<Hook>& table) {
  const std::lock_guard lock(mutex_);
  return table;
}

void Hooks::ended(std::uint64_t key, const std::string& error) {
  if (error.empty()) {
    if (!awaited_.load(std::memory_order_relaxed)) return;
    for (const auto& [id, hook] : *all(completion_)) call_hook(hook, key);
    return;
  }
  if (failed_.exchange(true)) return;
  auto hooks = all(abort_);
  if (hooks->empty()) return;
  Beside::of_process().run([hooks = std::move(hooks)] {
    for (const auto& [id, hook] : *hooks) call_hook(hook);
  });
}

void Hooks::finish() { Beside::of_process().wait(); }

}  // namespace chorus_torch
