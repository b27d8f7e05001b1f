#include "base/text/progress.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace chorus {
namespace {

constexpr int kBarWidth = 24;
constexpr auto kLogEvery = std::chrono::seconds(10);
constexpr auto kDrawEvery = std::chrono::milliseconds(100);

}  // namespace

Progress::Progress(std::FILE* to, std::string name, Eta eta)
    : to_(to),
      name_(std::move(name)),
      eta_(eta),
      terminal_(::isatty(::fileno(to)) == 1),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (terminal_ && drawn_) fmt::print(to_, "\r\033[K");
}

void Progress::show(int done, int total, std::string_view what) {
  const Clock::time_point now = Clock::now();
  const bool due = now - last_ >= (terminal_ ? kDrawEvery : kLogEvery);
  // A log tells of long work alone: its first line comes after kLogEvery, its last only after that.
  if (!due && (drawn_ ? done != total : !terminal_)) return;
  drawn_ = true;
  last_ = now;
  std::string left;
  if (eta_ == Eta::from_pace && done > 0) {
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    left = fmt::format(", {:.0f} s left", elapsed / done * (total - done));
  }
  if (terminal_) {
    const int full = total == 0 ? kBarWidth : std::clamp(kBarWidth * done / total, 0, kBarWidth);
    fmt::print(to_, "\r\033[K[{}{}] {}/{} {}{}", std::string(static_cast<std::size_t>(full), '#'),
               std::string(static_cast<std::size_t>(kBarWidth - full), '.'), done, total, what,
               left);
  } else {
    fmt::print(to_, "{}: {}/{} {}{}\n", name_, done, total, what, left);
  }
  std::fflush(to_);
}

}  // namespace chorus
