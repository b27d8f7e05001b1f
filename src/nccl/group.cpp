#include "nccl/group.hpp"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <mutex>

#include "nccl/log.hpp"

namespace chorus::nccl {
namespace {

/// Runs the tasks of one parent (or one without) and keeps what came of them.
void run_chain(const std::vector<Task*>& chain, std::vector<Outcome>& outcomes,
               const std::vector<Task>& all) {
  for (Task* task : chain) {
    Outcome outcome;
    try {
      task->run();
    } catch (...) {
      outcome = Outcome::of_exception();
    }
    outcomes[static_cast<std::size_t>(task - all.data())] = outcome;
  }
}

/// Makes the end of a task known: to who polls, or, blocking, to the caller's variable.
void settle(const Task& task, const Outcome& outcome) {
  ncclComm* const child = task.child;
  if (outcome.code == ncclSuccess) {
    if (child != nullptr) child->set_state(ncclSuccess);
    if (task.parent != nullptr) task.parent->set_state(ncclSuccess);
    return;
  }
  if (child != nullptr) child->fail(outcome);
  if (task.parent != nullptr && !task.blocking) task.parent->fail(outcome);
  if (task.blocking && task.result != nullptr) {
    if (child != nullptr) child->phase = Phase::gone;
    *task.result = nullptr;
  }
}

std::vector<std::vector<Task*>> chains_of(std::vector<Task>& tasks) {
  std::vector<std::vector<Task*>> chains;
  for (Task& task : tasks) {
    const auto same = std::find_if(chains.begin(), chains.end(), [&](const auto& chain) {
      return task.parent != nullptr && chain.front()->parent == task.parent;
    });
    if (same == chains.end()) {
      chains.push_back({&task});
    } else {
      same->push_back(&task);
    }
  }
  return chains;
}

/// One thread per chain, as each may wait for the others' ranks; the last runs here. Returns the
/// first failure.
Outcome run_together(std::vector<Task>& tasks) {
  std::vector<Outcome> outcomes(tasks.size());
  std::mutex mutex;
  std::condition_variable ended;
  auto chains = chains_of(tasks);
  std::size_t running = chains.size() - 1;
  for (std::size_t i = 0; i + 1 < chains.size(); ++i) {
    start_thread([&, i] {
      run_chain(chains[i], outcomes, tasks);
      const std::lock_guard lock(mutex);
      --running;
      ended.notify_one();
    });
  }
  run_chain(chains.back(), outcomes, tasks);
  {
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return running == 0; });
  }
  Outcome first;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    settle(tasks[i], outcomes[i]);
    if (first.code == ncclSuccess) first = outcomes[i];
  }
  return first;
}

ncclResult_t run_tasks(std::vector<Task> tasks, bool blocking) {
  if (blocking) {
    const Outcome outcome = run_together(tasks);
    if (outcome.code != ncclSuccess) throw Fault(outcome.code, outcome.text);
    return ncclSuccess;
  }
  for (const Task& task : tasks) {
    if (task.parent != nullptr) task.parent->set_state(ncclInProgress);
    if (task.child != nullptr) task.child->set_state(ncclInProgress);
  }
  auto kept = std::make_shared<std::vector<Task>>(std::move(tasks));
  start_thread([kept] { report_in_background(run_together(*kept)); });
  return ncclInProgress;
}

/// What was asked for will not happen: nobody shall wait for this rank.
void give_up(const std::vector<Operation>& operations, const Outcome& outcome) {
  for (const Operation& each : operations) {
    each.body->communicator.abort("a call of the same group failed: " + outcome.text);
    if (each.body->gpu) each.body->gpu->abort("a call of the same group failed: " + outcome.text);
    each.comm->fail(outcome);
  }
}

ncclResult_t run_operations(std::vector<Operation> operations, bool blocking) {
  try {
    deliver_to_self(operations);
  } catch (const Fault& fault) {
    give_up(operations, {fault.code(), fault.what()});
    throw;
  }
  const bool waits = std::any_of(operations.begin(), operations.end(),
                                 [](const Operation& each) { return !each.on_gpu; });
  if (blocking || !waits) {
    execute(operations);
    return ncclSuccess;
  }
  for (const Operation& each : operations) each.comm->set_state(ncclInProgress);
  auto kept = std::make_shared<std::vector<Operation>>(std::move(operations));
  start_thread([kept] {
    try {
      execute(*kept);
    } catch (...) {  // execute() has told the communicators
      report_in_background(Outcome::of_exception());
      return;
    }
    for (const Operation& each : *kept) each.comm->set_state(ncclSuccess);
  });
  return ncclInProgress;
}

}  // namespace

Group& Group::mine() {
  static thread_local Group group;
  return group;
}

void Group::spoil(const Outcome& outcome) {
  if (depth_ == 0 || outcome.code == ncclInvalidArgument) return;
  if (content_.spoilt.code == ncclSuccess) content_.spoilt = outcome;
}

Group::Content Group::close() {
  if (depth_ == 0) {
    refuse(ncclInvalidUsage, "no group is open in this thread: ncclGroupStart begins one");
  }
  if (--depth_ > 0) return {};
  return std::exchange(content_, {});
}

ncclResult_t Group::end() { return run(close()); }

ncclResult_t Group::run(Content content) {
  if (!content.tasks.empty() && !content.operations.empty() && content.spoilt.code == ncclSuccess) {
    content.spoilt = {ncclInvalidUsage,
                      "a group makes (or ends) communicators or runs calls on them, not both: use "
                      "two groups"};
  }
  if (content.spoilt.code != ncclSuccess) {
    give_up(content.operations, content.spoilt);
    for (Task& task : content.tasks) settle(task, content.spoilt);
    throw Fault(content.spoilt.code, content.spoilt.text);
  }
  // All of one kind: add() has seen to it.
  const bool blocking = content.tasks.empty() ? content.operations.empty() ||
                                                    content.operations.front().comm->config.blocking
                                              : content.tasks.front().blocking;
  if (!content.tasks.empty()) return run_tasks(std::move(content.tasks), blocking);
  if (content.operations.empty()) return ncclSuccess;
  return run_operations(std::move(content.operations), blocking);
}

double Group::simulate() {
  const Content content = close();
  if (content.spoilt.code != ncclSuccess) {
    throw Fault(content.spoilt.code, content.spoilt.text);
  }
  std::map<const ncclComm*, double> seconds;
  for (const Operation& each : content.operations) {
    seconds[each.comm] += each.body->communicator.predicted_s(each.call);
  }
  double longest = 0;
  for (const auto& [comm, each] : seconds) longest = std::max(longest, each);
  return longest;
}

ncclResult_t Group::add(Operation operation, Claim claim) {
  if (depth_ == 0) {
    std::vector<Operation> alone;
    alone.push_back(std::move(operation));
    const bool blocking = alone.front().comm->config.blocking;
    return run_operations(std::move(alone), blocking);
  }
  const bool blocking = operation.comm->config.blocking;
  if ((!content_.operations.empty() &&
       content_.operations.front().comm->config.blocking != blocking) ||
      (!content_.tasks.empty() && content_.tasks.front().blocking != blocking)) {
    refuse(ncclInvalidArgument,
           "blocking and non-blocking communicators cannot be in one group: use two");
  }
  content_.operations.push_back(std::move(operation));
  content_.claims.push_back(std::move(claim));
  return ncclSuccess;
}

ncclResult_t Group::add(Task task, std::vector<Claim> claims) {
  if (!content_.tasks.empty() && content_.tasks.front().blocking != task.blocking) {
    refuse(ncclInvalidArgument,
           "blocking and non-blocking communicators cannot be in one group: use two");
  }
  if (depth_ == 0) {
    std::vector<Task> alone;
    alone.push_back(std::move(task));
    const bool blocking = alone.front().blocking;
    return run_tasks(std::move(alone), blocking);
  }
  content_.tasks.push_back(std::move(task));
  for (Claim& claim : claims) content_.claims.push_back(std::move(claim));
  return ncclSuccess;
}

void spoil_group(const Outcome& outcome) { Group::mine().spoil(outcome); }

}  // namespace chorus::nccl

using namespace chorus::nccl;

extern "C" ncclResult_t pncclGroupStart() {
  return guarded("ncclGroupStart", [] {
    Group::mine().start();
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(GroupStart);

extern "C" ncclResult_t pncclGroupEnd() {
  return guarded("ncclGroupEnd", [] { return Group::mine().end(); });
}
CHORUS_NCCL_EXPORT(GroupEnd);

extern "C" ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t* simInfo) {
  return guarded("ncclGroupSimulateEnd", [&] {
    if (simInfo != nullptr && (simInfo->magic != 0x74685283 || simInfo->size == 0)) {
      refuse(ncclInvalidArgument,
             "ncclSimInfo_t was not initialized: begin with NCCL_SIM_INFO_INITIALIZER");
    }
    const double seconds = Group::mine().simulate();
    if (simInfo != nullptr && simInfo->size >= sizeof(ncclSimInfo_t)) {
      simInfo->estimatedTime = static_cast<float>(seconds * 1e6);
    }
    return ncclSuccess;
  });
}
CHORUS_NCCL_EXPORT(GroupSimulateEnd);
