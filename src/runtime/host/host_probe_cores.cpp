#include "runtime/host/host_probe_cores.hpp"

#include <pthread.h>

#include <system_error>
#include <thread>

namespace chorus {
namespace {

bool pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<unsigned>(core), &set);
  return ::pthread_setaffinity_np(::pthread_self(), sizeof set, &set) == 0;
}

}  // namespace

bool on_cores(const int (&cores)[2], Turns::Time end, const std::function<void(Turns&)>& writer,
              const std::function<void(Turns&)>& reader) {
  Turns turns(end);
  std::atomic<int> ready{0};
  std::atomic<bool> failed{false};
  const auto run = [&](int core, const std::function<void(Turns&)>& work) {
    if (!pin_to(core)) failed = true;
    ++ready;
    while (ready.load() < 2) ::sched_yield();
    try {
      if (!failed) work(turns);
    } catch (const Turns::Overdue&) {
      failed = true;
    }
  };
  std::thread other([&] { run(cores[0], writer); });
  std::thread one;
  try {
    one = std::thread([&] { run(cores[1], reader); });
  } catch (const std::system_error&) {
    failed = true;
    ready = 2;
  }
  other.join();
  if (one.joinable()) one.join();
  return !failed;
}

}  // namespace chorus
