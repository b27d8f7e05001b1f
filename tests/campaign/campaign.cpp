// chorus-campaign COUNT SEED: so many jobs to each of which one thing happens at a random moment,
// and the distribution of how long it took until it was named, and until the others went on.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <string_view>
#include <vector>

#include "trial.hpp"

namespace {

void show(const char* what, std::vector<double> seconds) {
  if (seconds.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  const auto at = [&](double share) {
    return 1000 *
           seconds[static_cast<std::size_t>(share * static_cast<double>(seconds.size() - 1) + 0.5)];
  };
  std::fputs(fmt::format("{:<22} {:>6} jobs  p50 {:>7.1f} ms  p90 {:>7.1f} ms  p99 {:>7.1f} ms  "
                         "max {:>7.1f} ms\n",
                         what, seconds.size(), at(0.5), at(0.9), at(0.99), at(1))
                 .c_str(),
             stdout);
}

bool read(std::string_view text, int& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value >= 0;
}

}  // namespace

int main(int count, char** arguments) {
  int trials = 0, seed = 0;
  if (count != 3 || !read(arguments[1], trials) || !read(arguments[2], seed)) {
    std::fputs("usage: chorus-campaign COUNT SEED (both numbers from 0 on)\n", stderr);
    return 2;
  }
  using namespace chorus::campaign;
  std::vector<double> named, usable, stopped;
  int as_promised = 0;
  for (int i = 0; i < trials; ++i) {
    const Trial trial = draw(static_cast<std::uint64_t>(seed), i);
    const Result result = run(trial);
    if (result.broken) {
      fmt::print("trial {}: {}: {}\n", i, trial.text(), *result.broken);
      std::fflush(stdout);
      continue;
    }
    ++as_promised;
    if (trial.fault == Fault::stop) {  // named when a call's time is up
      if (result.named_s > 0) stopped.push_back(result.named_s);
      continue;
    }
    if (result.named_s > 0) named.push_back(result.named_s);
    if (result.usable_s > 0) usable.push_back(result.usable_s);
  }
  fmt::print("{} of {} ended as promised\n", as_promised, trials);
  std::fflush(stdout);
  show("dead, until named", std::move(named));
  show("until usable again", std::move(usable));
  show("stopped, until named", std::move(stopped));
  return as_promised == trials ? 0 : 1;
}
