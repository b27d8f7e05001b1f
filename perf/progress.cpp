#include "perf/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <string>

namespace chorus::perf {
namespace {

constexpr int kBarWidth = 24;
constexpr auto kLogEvery = std::chrono::seconds(10);

}  // namespace

Progress::Progress(std::FILE* to)
    : to_(to), terminal_(::isatty(::fileno(to)) == 1), start_(Clock::now()), last_(start_) {}

Progress::~Progress() {
  if (terminal_) fmt::print(to_, "\r\033[K");
}

void Progress::show(const Step& step) {
  const Clock::time_point now = Clock::now();
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left =
      step.done == 0 ? 0 : elapsed / step.done * static_cast<double>(step.total - step.done);
  const std::string eta = step.done == 0 ? "" : fmt::format(", {:.0f} s left", left);
  if (terminal_) {
    const int full = step.total == 0 ? kBarWidth : kBarWidth * step.done / step.total;
    fmt::print(to_, "\r\033[K[{}{}] {}/{} {}{}", std::string(static_cast<std::size_t>(full), '#'),
               std::string(static_cast<std::size_t>(kBarWidth - full), '.'), step.done, step.total,
               step.what, eta);
    std::fflush(to_);
    return;
  }
  if (step.done != 0 && step.done != step.total && now - last_ < kLogEvery) return;
  last_ = now;
  fmt::print(to_, "chorus-perf: {}/{} {}{}\n", step.done, step.total, step.what, eta);
  std::fflush(to_);
}

}  // namespace chorus::perf
