#include "group.hpp"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <fstream>
#include <mutex>
#include <random>
#include <sstream>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <utility>
#include <vector>

namespace chorus_torch {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr auto kLook = milliseconds(2);
// What rank 0 adds to the others' patience, so that its sentence, which names who is missing,
// comes before theirs.
constexpr auto kGrace = milliseconds(2'000);
constexpr char kFailed = '!';
constexpr char kPart = '=';
constexpr char kPlace[] = "chorus/place";

// Emulated hosts share a kernel, containers a name: both together tell hosts apart.
std::string this_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  return std::string(name) + " " + boot;
}

// Keys outlive the attempt of a job that wrote them: torchrun gives the next attempt's workers the
// same store. So whoever must not be taken for its predecessor has a name that never was there
// before.
std::string fresh_key() {
  std::random_device random;
  std::string key = "chorus/";
  for (int i = 0; i < 4; ++i) key += std::to_string(random()) + (i < 3 ? "-" : "");
  return key;
}

std::string ms(milliseconds time) { return std::to_string(time.count()) + " ms"; }

std::string named(const std::vector<int>& ranks, const char* one, const char* several) {
  std::string text = ranks.size() == 1 ? one : several;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

// Tools tell the loss of a peer from an error of the program by Gloo's words for it.
bool tells_of_a_lost_peer(const std::string& sentence) {
  return sentence.find(" died") != std::string::npos ||
         sentence.find("called the end of the communicator") != std::string::npos;
}

// Groups live until they have left: whoever drops the last reference may hold Python's lock, or be
// the group's own thread, and must not wait for that.
struct Registry {
  std::mutex mutex;
  std::vector<std::shared_ptr<Group>> groups;
};
Registry& registry() {
  static auto* const all = new Registry;  // used while the process ends
  return *all;
}

}  // namespace

Group::Group(c10::intrusive_ptr<c10d::Store> store, int rank, int size, milliseconds timeout,
             Meeting meeting)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      timeout_(timeout),
      meeting_(std::move(meeting)),
      process_(::getpid()) {}

std::string Group::text_at(const std::string& key) {
  const auto bytes = store_->get(key);
  return {bytes.begin(), bytes.end()};
}

void Group::tell(const std::string& key, const std::string& text) {
  store_->set(key, std::vector<std::uint8_t>(text.begin(), text.end()));
}

// The value of `key`, or nothing when the time is over. Without any time it looks once.
std::string Group::wait_for(const std::string& key, milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (!store_->check({key})) {
    if (Clock::now() > deadline) return {};
    std::this_thread::sleep_for(kLook);
  }
  return text_at(key);
}

// The oldest group of this process that others can be made from: then they need no connections of
// their own.
void Group::find_base() {
  const std::lock_guard lock(registry().mutex);
  for (const auto& group : registry().groups) {
    if (!group->of_this_process()) continue;
    const auto maker = group->maker();
    if (!maker || maker->failure()) continue;
    base_ = group;
    base_maker_ = maker;
    return;
  }
}

std::shared_ptr<chorus::Communicator> Group::maker() {
  const std::lock_guard lock(mutex_);
  return maker_;
}

// Its name and this rank in it, for rank 0 of a meeting to compare.
std::string Group::base_entry() const {
  return base_ ? base_->place_ + " " + std::to_string(base_->rank_) : "- -1";
}

/// Who came to a meeting.
struct Group::Arrivals {
  std::vector<std::string> keys;  ///< under which the answer is awaited
  std::string ranks_of_base;      ///< "0 2 1", by rank of the new group
  bool one_base = true;           ///< they have all been in the same group before
  bool one_host = true;
  std::string fault;  ///< names those that did not come
};

// On rank 0: waits for the others.
Group::Arrivals Group::arrived(const std::string& base) {
  const auto deadline = Clock::now() + timeout();
  const std::string here = this_host();
  Arrivals result;
  std::istringstream mine(base);
  std::string base_name;
  mine >> base_name >> result.ranks_of_base;
  result.one_base = base_name != "-";
  std::vector<int> missing;
  for (int r = 1; r < size_; ++r) {
    const auto left = std::max(milliseconds(0),
                               std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
    std::istringstream entry(wait_for(place_ + std::to_string(r), left));
    std::string key, name, rank, host;
    if (!(entry >> key >> name >> rank) || !std::getline(entry >> std::ws, host)) {
      missing.push_back(r);
      continue;
    }
    result.keys.push_back(key);
    result.one_base = result.one_base && name == base_name;
    result.ranks_of_base += " " + rank;
    result.one_host = result.one_host && host == here;
  }
  if (!missing.empty()) result.fault = did_not_come(missing);
  return result;
}

int Group::name_of(int rank) const {
  return meeting_.names.empty() ? rank : meeting_.names[static_cast<std::size_t>(rank)];
}

std::string Group::did_not_come(const std::vector<int>& ranks) const {
  std::vector<int> names;
  for (const int rank : ranks) names.push_back(name_of(rank));
  return named(names, "rank ", "ranks ") + " of " + std::to_string(size_) + " did not come to " +
         meeting_.call + ": timeout after " + std::to_string(timeout().count()) + "ms";
}

// On rank 0: a place of this meeting alone, into which the others come; each is answered under the
// key that it brings: the id of a new job, or who they are in the one that they have.
std::string Group::receive(const std::string& address, const std::string& interface) {
  place_ = fresh_key() + "/";
  tell(kPlace, place_);
  Arrivals all = arrived(base_entry());
  std::string answer = kPart + all.ranks_of_base;
  if (all.fault.empty() && !all.one_base) {
    try {
      answer =
          chorus::UniqueId::make(size_, all.one_host || !interface.empty() ? interface : address)
              .text;
    } catch (const chorus::Error& error) {
      all.fault = std::string("rank 0: ") + error.what();
    }
  }
  for (const std::string& key : all.keys)
    tell(key, all.fault.empty() ? answer : kFailed + all.fault);
  if (!all.fault.empty()) throw chorus::BootstrapError(all.fault);
  return answer;
}

// On the other ranks: what rank 0 answers. The place that is found first may be an earlier
// attempt's.
std::string Group::come() {
  const auto deadline = Clock::now() + timeout() + kGrace;
  const std::string key = fresh_key();
  tell(key + "/waits", "");  // a store in a file that nobody has made yet would hold up check()
  while (!store_->check({key})) {
    if (Clock::now() > deadline) {
      throw chorus::BootstrapError("rank " + std::to_string(name_of(rank_)) + ": " +
                                   did_not_come({0}));
    }
    std::string place = store_->check({kPlace}) ? text_at(kPlace) : std::string();
    if (place != place_) {
      place_ = std::move(place);
      tell(place_ + std::to_string(rank_), key + " " + base_entry() + " " + this_host());
    }
    std::this_thread::sleep_for(kLook);
  }
  std::string answer = text_at(key);
  if (answer.front() == kFailed) throw chorus::BootstrapError(answer.substr(1));
  return answer;
}

std::shared_ptr<Group> Group::meet(c10::intrusive_ptr<c10d::Store> store, int rank, int size,
                                   milliseconds timeout, const std::string& address) {
  std::shared_ptr<Group> group(new Group(std::move(store), rank, size, timeout, {}));
  group->meet(address);
  enter(group);
  return group;
}

std::shared_ptr<Group> Group::shrink(std::span<const std::int64_t> excluded, milliseconds timeout,
                                     const std::string& address) const {
  Meeting meeting{.call = "shrink_group", .anew = true};
  std::string place = place_ + "without";
  int rank = 0;
  for (int r = 0; r < size_; ++r) {
    if (std::ranges::find(excluded, r) != excluded.end()) {
      place += " " + std::to_string(r);
      continue;
    }
    if (r == rank_) rank = static_cast<int>(meeting.names.size());
    meeting.names.push_back(r);
  }
  const int size = static_cast<int>(meeting.names.size());
  std::shared_ptr<Group> group(new Group(c10::make_intrusive<c10d::PrefixStore>(place, store_),
                                         rank, size, timeout, std::move(meeting)));
  group->meet(address);
  enter(group);
  return group;
}

// torch's time limit, but for a stricter one that somebody set for Chorus.
int Group::limit_ms(milliseconds timeout) const {
  return static_cast<int>(std::clamp<std::int64_t>(timeout.count(), 1, set_by_hand_ms_));
}

void Group::set_timeout(milliseconds timeout) {
  collectives_->set_timeout_ms(limit_ms(timeout));
  messages_->set_timeout_ms(limit_ms(timeout));
  timeout_ = timeout;
}

void Group::meet(const std::string& address) {
  chorus::Options options = chorus::Options::from_env();
  if (options.on_loss != "error") {
    throw chorus::InputError("CHORUS_ON_LOSS=" + options.on_loss +
                             ": process groups of PyTorch keep their ranks: unset it");
  }
  if (options.timeout_ms != chorus::Options{}.timeout_ms) set_by_hand_ms_ = options.timeout_ms;
  options.timeout_ms = limit_ms(timeout());

  if (!meeting_.anew) find_base();
  const std::string answer = rank_ == 0 ? receive(address, options.interface_name) : come();
  auto world = join(answer, options);
  base_.reset();
  base_maker_.reset();
  auto beside = world.split(0);
  const auto amend = [this](std::string text) { return amended(std::move(text)); };
  messages_ = std::make_unique<MessageDriver>(std::move(*beside), amend);
  collectives_ = std::make_unique<CollectiveDriver>(std::move(world), amend);
}

// From now on it lives until it has left.
void Group::enter(const std::shared_ptr<Group>& group) {
  const std::lock_guard lock(registry().mutex);
  std::erase_if(registry().groups, [](const auto& other) {
    return other.use_count() == 1 && other->collectives().has_left();
  });
  registry().groups.push_back(group);
}

chorus::Communicator Group::join(const std::string& answer, const chorus::Options& options) {
  if (answer.front() != kPart) {
    chorus::UniqueId id;
    id.text = answer;
    auto world = chorus::Communicator::join(id, rank_, size_, options);
    if (size_ > 1) maker_ = std::make_shared<chorus::Communicator>(std::move(*world.split(0)));
    return world;
  }
  std::vector<chorus::Rank> members;
  std::istringstream ranks(answer.substr(1));
  for (chorus::Rank rank = 0; ranks >> rank;) members.push_back(rank);
  return base_maker_->group(members, place_, options.timeout_ms);
}

bool Group::of_this_process() const { return ::getpid() == process_; }

Group::~Group() {
  if (!of_this_process()) {
    (void)collectives_.release();
    (void)messages_.release();
    (void)new std::shared_ptr<GpuDriver>(std::move(gpus_));
    return;
  }
  if (!collectives_) return;
  leave();
  collectives_->join();
}

// Adds what a rank that refused its call left in the store, and calls the limit by torch's name.
std::string Group::amended(std::string sentence) {
  const std::string variable = " (CHORUS_TIMEOUT_MS)";
  if (const auto at = sentence.find(variable); at != std::string::npos) {
    sentence.replace(at, variable.size(), ", the timeout of the process group");
  }
  try {
    if (store_->check({place_ + "refused"})) sentence += "; " + text_at(place_ + "refused");
  } catch (const std::exception&) {
    // The store went with its host; the sentence stands without it.
  }
  if (tells_of_a_lost_peer(sentence)) sentence += " (Connection closed by peer)";
  return sentence;
}

void Group::refuse_collective(const std::string& why) {
  if (size_ == 1) return;
  tell(place_ + "refused", "rank " + std::to_string(rank_) + " refused: " + why);
  auto task = std::make_shared<Task>();
  task->name = "refusal";
  task->calls.push_back({.kind = chorus::Call::Kind::barrier});
  collectives().submit(std::move(task));
  collectives().kick();
}

void Group::refuse_message(const std::string& why) {
  if (size_ > 1) messages().abort("rank " + std::to_string(rank_) + " refused: " + why);
}

void Group::refuse_on_gpu(const std::string& why) {
  if (const auto driver = gpus()) {
    driver->abort("rank " + std::to_string(rank_) + " refused: " + why);
  } else {
    refuse_collective(why);  // the others are about to meet on their GPUs
  }
}

std::shared_ptr<GpuDriver> Group::gpus() {
  const std::lock_guard lock(mutex_);
  return gpus_;
}

std::shared_ptr<GpuDriver> Group::join_gpus(int gpu, const GpuDriver::MakeStream& make_stream) {
  const std::lock_guard joining(gpus_joining_);
  if (auto driver = gpus()) return driver;
  auto task = std::make_shared<Task>();
  task->name = "the first call on CUDA tensors";
  task->run = [&](chorus::Communicator& world) {
    try {
      auto driver = std::make_shared<GpuDriver>(
          world, gpu, make_stream, [this](std::string text) { return amended(std::move(text)); });
      const std::lock_guard lock(mutex_);
      gpus_ = std::move(driver);
    } catch (const chorus::DeviceError& error) {
      throw chorus::InputError(error.what());  // of which all ranks were told: the group goes on
    }
  };
  collectives().submit(task);
  collectives().wait(task, milliseconds(0));
  if (!task->error.empty()) throw chorus::CollectiveError(task->error);
  return gpus();
}

// The sentences have what tools look for in Gloo's.
void Group::monitored_barrier(milliseconds timeout, bool all) {
  const std::string place = place_ + "barrier/" + std::to_string(monitored_++) + "/";
  tell(place + std::to_string(rank_), "here");
  std::string fault;
  if (rank_ == 0) {
    const std::vector<int> missing = missing_at(place, timeout, all);
    if (!missing.empty()) {
      fault = "[Rank 0]: " + named(missing, "Rank ", "Ranks ") +
              " failed to pass monitoredBarrier in " + ms(timeout) +
              ". Rank 0 timed out in monitoredBarrier after " + ms(timeout);
    }
    tell(place + "verdict", fault.empty() ? "all" : kFailed + fault);
  } else {
    const std::string verdict = wait_for(place + "verdict", timeout + kGrace);
    if (verdict.empty()) {
      fault = "rank 0 did not call it within " + ms(timeout);
    } else if (verdict.front() == kFailed) {
      fault = verdict.substr(1);
    }
    if (!fault.empty()) {
      fault = "Rank " + std::to_string(rank_) +
              " successfully reached monitoredBarrier, but received errors while waiting for "
              "send/recv from rank 0. Please check rank 0 logs for faulty rank. (" +
              fault + ")";
    }
  }
  if (!fault.empty()) throw chorus::CollectiveError(fault);
}

// On rank 0: who has not come to `place` in time; without `all` the first of them.
std::vector<int> Group::missing_at(const std::string& place, milliseconds timeout, bool all) {
  const auto deadline = Clock::now() + timeout;
  std::vector<int> missing;
  for (int r = 1; r < size_ && (all || missing.empty()); ++r) {
    const auto left = std::max(milliseconds(0),
                               std::chrono::duration_cast<milliseconds>(deadline - Clock::now()));
    if (wait_for(place + std::to_string(r), left).empty()) missing.push_back(r);
  }
  return missing;
}

void Group::abort(const std::string& reason) {
  fail(reason);
  if (const auto base = maker()) base->abort(reason);  // else leaving waits for ranks that hang
}

void Group::fail(const std::string& reason) {
  collectives().abort(reason);
  messages().abort(reason);
  if (const auto driver = gpus()) driver->abort(reason);
}

void Group::leave() {
  if (!of_this_process()) return;
  // Before anything waits for the others: they may be waiting for this rank in either.
  messages_->end();
  std::shared_ptr<chorus::Communicator> maker;
  {
    const std::lock_guard lock(mutex_);  // from now on no group is made from this one
    maker.swap(maker_);
  }
  collectives().leave([this, maker = std::move(maker)]() mutable {
    messages_->leave();
    maker.reset();
    std::shared_ptr<GpuDriver> last;
    const std::lock_guard lock(mutex_);
    last.swap(gpus_);
  });
}

void Group::leave_all(const std::string& reason) {
  std::vector<std::shared_ptr<Group>> groups;
  {
    const std::lock_guard lock(registry().mutex);
    for (const auto& group : registry().groups) {
      if (group->of_this_process()) groups.push_back(group);
    }
  }
  for (const auto& group : groups) {
    if (!reason.empty()) group->fail(reason);
    group->leave();
  }
  for (const auto& group : groups) group->collectives().join();
}

}  // namespace chorus_torch
