#include "runtime/probing/survey.hpp"

#include <fmt/format.h>

#include <exception>
#include <utility>

#include "base/text/log.hpp"
#include "chorus/error.hpp"
#include "runtime/probing/flows.hpp"

namespace chorus {
namespace {

void tell(const GroupPlace& place, const Probed& probed) {
  if (place.rank != 0 || !log_enabled(LogLevel::info)) return;
  log(LogLevel::info, fmt::format("[rank {}/{}]", place.rank, place.members.size()),
      probed.cached ? fmt::format("the network was probed before (CHORUS_PROBE_CACHE):\n{}",
                                  probing::describe(probed.network))
                    : fmt::format("probed the network in {:.0f} ms with {:.1f} MB:\n{}",
                                  probed.seconds * 1e3, static_cast<double>(probed.bytes) * 1e-6,
                                  probing::describe(probed.network)));
}

}  // namespace

Survey::Survey(std::shared_ptr<Control> control, GroupPlace place, const Options& options,
               const SlotLayout& layout, const Connections& connections, bool use_cache)
    : control_(std::move(control)),
      place_(std::move(place)),
      options_(options),
      layout_(layout),
      hosts_(hosts_of(connections)) {
  Probed known = recall_network(*control_, place_, options_, hosts_, use_cache);
  if (known.cached) {
    tell(place_, known);
    recalled_ = std::move(known);
    over_ = true;
    return;
  }
  begin(std::move(known), false);
}

Survey::Survey(std::shared_ptr<Control> control, GroupPlace place, const Options& options,
               const SlotLayout& layout, const Connections& connections, std::string probe_key)
    : control_(std::move(control)),
      place_(std::move(place)),
      options_(options),
      layout_(layout),
      hosts_(hosts_of(connections)) {
  Probed known;
  known.parts = hosts_.parts;
  known.network.hosts = hosts_.names;
  known.key = std::move(probe_key);
  begin(std::move(known), true);
}

void Survey::begin(Probed known, bool in_a_hurry) {
  thread_ = std::jthread(
      [this, in_a_hurry, start = std::move(known)](const std::stop_token& stop) mutable {
        measure(stop, std::move(start), in_a_hurry);
      });
}

Survey::~Survey() {
  thread_.request_stop();
  control_->wake();
}

void Survey::measure(const std::stop_token& stop, Probed known, bool in_a_hurry) {
  std::optional<Probed> measured;
  try {
    measured = measure_network(
        *control_, place_, options_, layout_, hosts_,
        {.budget_ms = options_.probe_ms, .in_a_hurry = in_a_hurry, .gate = &gate_, .stop = stop},
        std::move(known));
    tell(place_, *measured);
  } catch (const ProbeStopped&) {  // nobody waits for it
  } catch (const std::exception& error) {
    log(LogLevel::info, fmt::format("[rank {}/{}]", place_.rank, place_.members.size()),
        fmt::format("the network was not probed to the end: {}", error.what()));
  }
  gate_.open();
  {
    const std::lock_guard lock(mutex_);
    measured_ = std::move(measured);
    over_ = true;
  }
  settled_.notify_all();
}

const Probed* Survey::await(const std::stop_token& stop) {
  if (recalled_) return &*recalled_;
  std::unique_lock lock(mutex_);
  settled_.wait(lock, stop, [this] { return over_; });
  return measured_ ? &*measured_ : nullptr;
}

}  // namespace chorus
