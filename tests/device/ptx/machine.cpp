#include "machine.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <stdexcept>

#include "execution.hpp"

namespace ptx {
namespace {

constexpr std::uint64_t kStack = 4096;  ///< of one thread

}  // namespace

Machine::Machine(const Module& module, Settings settings)
    : module_(module),
      settings_(std::move(settings)),
      random_(settings_.seed),
      clocks_(module, [this](const std::string& what) { settings_.found(what); }),
      covered_(module.instructions().size(), false) {}

Machine::~Machine() = default;

Launch& Machine::begin(const std::string& kernel, const void* parameters, std::size_t bytes,
                       std::uint32_t blocks, std::uint32_t threads, std::uint32_t device) {
  auto made = std::make_unique<Launch>();
  Launch& launch = *made;
  launch.kernel = &module_.function(kernel);
  launch.parameters.resize(launch.kernel->parameter_bytes, std::byte{0xee});
  std::memcpy(launch.parameters.data(), parameters, std::min(bytes, launch.parameters.size()));
  launch.device = device;
  launch.threads = threads;
  launch.living = blocks;
  ranges_.clear();
  if (shared_.size() <= device) shared_.resize(device + 1);
  for (std::uint32_t b = 0; b < blocks; ++b) {
    Block& block = *launch.blocks.emplace_back(std::make_unique<Block>());
    block.launch = &launch;
    block.index = b;
    block.living = threads;
    // As the block before left it on that multiprocessor.
    auto& idle = shared_[device];
    if (idle.empty()) {
      idle.push_back(
          std::make_unique<std::vector<std::byte>>(module_.shared_bytes(), std::byte{0xcd}));
    }
    block.shared = idle.back().release();
    idle.pop_back();
    if (settings_.races) clocks_.begin(block.clock, device);
    for (std::uint32_t first = 0; first < threads; first += kLanes) {
      Warp& warp = *block.warps.emplace_back(std::make_unique<Warp>());
      warp.block = &block;
      warp.first_thread = first;
      warp.stack.resize(kStack * kLanes);
      Frame* const frame = make_frame(*launch.kernel);
      frame->parent = nullptr;
      frame->depth = 0;
      frame->stack = launch.kernel->local_bytes;
      frame->users = 1;
      const std::uint32_t lanes = std::min(kLanes, threads - first);
      warp.fragments.push_back(
          {.lanes = lanes == kLanes ? ~0U : (1U << lanes) - 1, .next = 0, .frame = frame});
      set_ready(warp, true);
    }
  }
  launches_.push_back(std::move(made));
  return launch;
}

void Machine::end(Launch& launch) {
  for (auto& block : launch.blocks) {
    for (auto& warp : block->warps) {
      set_ready(*warp, false);
      for (const Fragment& fragment : warp->fragments) drop(fragment.frame);
    }
    if (settings_.races) clocks_.end(block->clock);
    shared_[launch.device].emplace_back(block->shared);
  }
  std::erase_if(launches_, [&](const auto& one) { return one.get() == &launch; });
}

void Polls::load(const Instruction& one, std::uint32_t lanes, const Lanes& at,
                 const Lanes& values) {
  constexpr std::uint64_t kFactor = 0x9e3779b97f4a7c15;
  Found now{.where = one.index + 1, .what = 0};
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    now.where = (now.where ^ at[lane]) * kFactor;
    now.what = (now.what ^ values[lane]) * kFactor;
  }
  Found& before = found[now.where >> 58];
  const bool same = before.where == now.where && before.what == now.what;
  repeated = same ? repeated + 1 : 0;
  before = now;
}

void Machine::set_ready(Warp& warp, bool ready) {
  if (ready == (warp.ready_at != 0)) return;
  if (ready) {
    ready_.push_back(&warp);
    warp.ready_at = static_cast<std::uint32_t>(ready_.size());
    return;
  }
  Warp* const last = ready_.back();
  ready_[warp.ready_at - 1] = last;
  last->ready_at = warp.ready_at;
  ready_.pop_back();
  warp.ready_at = 0;
}

Frame* Machine::make_frame(const Function& function) {
  auto& free = free_frames_[&function];
  if (!free.empty()) {
    Frame* const found = free.back();
    free.pop_back();
    return found;
  }
  Frame& made = *frames_.emplace_back(std::make_unique<Frame>());
  made.function = &function;
  made.registers.resize(function.registers + 1);
  made.predicates.resize(function.predicates + 1);
  return &made;
}

void Machine::drop(Frame* frame) {
  while (frame != nullptr && --frame->users == 0) {
    free_frames_[frame->function].push_back(frame);
    frame = frame->parent;
  }
}

// A warp at random, for a random while; some are left behind for long.
bool Machine::turn() {
  asleep_ = false;
  if (ready_.empty()) return false;
  ++turns_;
  Warp& warp = *ready_[random_() % ready_.size()];
  if (warp.sleeps_until > turns_) {
    asleep_ = true;
    return true;
  }
  const std::uint64_t chance = random_();
  if (chance % 512 == 0) {
    warp.sleeps_until = turns_ + (chance >> 32) % (64 * ready_.size());
    return true;
  }
  const std::uint32_t most = (chance >> 16) % 8 == 0 ? 4 : 128;
  run_fragment(warp, choose_fragment(warp), 1 + static_cast<std::uint32_t>(chance >> 24) % most);
  if (warp.block->polls.waits()) {
    constexpr std::uint64_t kRounds = 8;  // of all that can run
    asleep_ = true;
    warp.sleeps_until = turns_ + kRounds * ready_.size();
  }
  return true;
}

// Lanes that are apart meet again where their ways do: those that are behind go first, mostly.
std::size_t Machine::choose_fragment(Warp& warp) {
  std::size_t chosen = warp.fragments.size();
  std::size_t any = random_() % warp.fragments.size();
  const bool behind = warp.fragments.size() > 1 && random_() % 16 != 0;
  if (!behind && !warp.fragments[any].waits) return any;
  for (std::size_t i = 0; i < warp.fragments.size(); ++i) {
    const Fragment& one = warp.fragments[i];
    if (one.waits) continue;
    if (chosen == warp.fragments.size()) {
      chosen = i;
      continue;
    }
    const Fragment& best = warp.fragments[chosen];
    if (one.frame->depth > best.frame->depth ||
        (one.frame->depth == best.frame->depth && one.next < best.next)) {
      chosen = i;
    }
  }
  return chosen;
}

// True if the fragment has met another one, which goes on for both.
bool Machine::merge(Warp& warp, std::size_t index) {
  Fragment& mine = warp.fragments[index];
  for (std::size_t i = 0; i < warp.fragments.size(); ++i) {
    Fragment& other = warp.fragments[i];
    if (i == index || other.waits != mine.waits || other.frame != mine.frame ||
        other.next != mine.next) {
      continue;
    }
    other.lanes |= mine.lanes;
    --mine.frame->users;
    warp.fragments.erase(warp.fragments.begin() + static_cast<std::ptrdiff_t>(index));
    return true;
  }
  return false;
}

void Machine::run_fragment(Warp& warp, std::size_t index, std::uint32_t most) {
  const std::size_t fragments = warp.fragments.size();
  for (; most > 0; --most) {
    Fragment& fragment = warp.fragments[index];
    const Instruction& one = fragment.frame->function->code[fragment.next];
    std::uint32_t lanes = fragment.lanes;
    if (one.guard.used) {
      const std::uint32_t held = fragment.frame->predicates[one.guard.slot];
      lanes &= one.guard.negated ? ~held : held;
    }
    executed_ += static_cast<std::uint64_t>(std::popcount(lanes));
    switch (one.op) {
      case Op::bra:
      case Op::brx:
        branch(warp, index, one, lanes);
        break;
      case Op::call:
        if (lanes != fragment.lanes) throw std::runtime_error("PTX: a call under a condition");
        call(fragment, one, warp);
        break;
      case Op::ret:
        leave(warp, index, lanes);
        return;
      case Op::bar_sync:
      case Op::bar_and:
      case Op::bar_or:
        if (lanes != fragment.lanes) throw std::runtime_error("PTX: a barrier under a condition");
        covered_[one.index] = true;
        return wait(warp, index);
      case Op::nanosleep:
        ++fragment.next;
        warp.sleeps_until = turns_ + ready_.size();
        return;
      default:
        if (lanes != 0) step(warp, *fragment.frame, lanes, one);
        ++fragment.next;
    }
    if (warp.fragments.size() != fragments) return;
    if (fragments > 1 && merge(warp, index)) return;
  }
}

void Machine::step(Warp& warp, Frame& frame, std::uint32_t lanes, const Instruction& one) {
  const Execution execution{*this, warp, frame, lanes};
  switch (one.op) {
    case Op::load:
    case Op::store:
      if (one.order != Order::weak) covered_[one.index] = true;
      return execution.memory(one);
    case Op::atom_add:
    case Op::atom_cas:
    case Op::atom_exch:
      covered_[one.index] = true;
      return execution.atomic(one);
    case Op::cvt:
      return execution.convert(one);
    case Op::setp:
    case Op::pred_and:
    case Op::pred_or:
    case Op::pred_xor:
    case Op::pred_not:
    case Op::pred_mov:
      return execution.predicate(one);
    case Op::mov:
    case Op::pack:
    case Op::unpack:
    case Op::special:
    case Op::local_address:
    case Op::to_shared:
    case Op::from_shared:
      return execution.misc(one);
    case Op::nop:
      return;
    case Op::trap:
    case Op::fence:
      throw std::runtime_error("PTX: an instruction that this does not execute");
    default:
      return execution.arithmetic(one);
  }
}

void Machine::branch(Warp& warp, std::size_t index, const Instruction& one, std::uint32_t lanes) {
  Fragment& fragment = warp.fragments[index];
  if (one.op == Op::bra) {
    if (lanes == fragment.lanes) {
      fragment.next = one.target;
      return;
    }
    ++fragment.next;
    if (lanes == 0) return;
    fragment.lanes &= ~lanes;
    ++fragment.frame->users;
    warp.fragments.push_back({.lanes = lanes, .next = one.target, .frame = fragment.frame});
    return;
  }
  const Frame& frame = *fragment.frame;
  const Lanes& which =
      one.in[0].fixed != nullptr ? *one.in[0].fixed : frame.registers[one.in[0].slot];
  std::map<std::uint32_t, std::uint32_t> ways;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    ways[one.targets.at(which[lane])] |= 1U << lane;
  }
  const std::uint32_t others = fragment.lanes & ~lanes;
  if (others != 0) ways[fragment.next + 1] |= others;
  bool first = true;
  Frame* const at = fragment.frame;
  for (const auto& [target, taken] : ways) {
    if (first) {
      warp.fragments[index].lanes = taken;
      warp.fragments[index].next = target;
    } else {
      ++at->users;
      warp.fragments.push_back({.lanes = taken, .next = target, .frame = at});
    }
    first = false;
  }
}

void Machine::call(Fragment& fragment, const Instruction& one, Warp& warp) {
  Frame* const caller = fragment.frame;
  Frame* const made = make_frame(*one.callee);
  made->parent = caller;  // the fragment's use of it becomes the new frame's
  made->return_to = fragment.next;
  made->users = 1;
  made->depth = caller->depth + 1;
  made->stack = caller->stack + one.callee->local_bytes;
  if (made->stack > warp.stack.size() / kLanes) throw std::runtime_error("PTX: calls too deep");
  for (const auto& [mine, theirs] : one.arguments) {
    for (std::uint32_t rest = fragment.lanes; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
      made->registers[theirs][lane] = caller->registers[mine][lane];
    }
  }
  fragment.frame = made;
  fragment.next = 0;
}

void Machine::leave(Warp& warp, std::size_t index, std::uint32_t lanes) {
  Fragment& fragment = warp.fragments[index];
  Frame* const frame = fragment.frame;
  Frame* const caller = frame->parent;
  if (lanes != fragment.lanes) throw std::runtime_error("PTX: a return under a condition");
  if (caller == nullptr) return lose_lanes(warp, index, lanes);
  const Instruction& call = caller->function->code[frame->return_to];
  for (const auto& [mine, theirs] : call.results) {
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
      caller->registers[mine][lane] = frame->registers[theirs][lane];
    }
  }
  ++caller->users;
  fragment.frame = caller;
  fragment.next = frame->return_to + 1;
  drop(frame);
  if (warp.fragments.size() > 1) merge(warp, index);
}

// These threads have ended.
void Machine::lose_lanes(Warp& warp, std::size_t index, std::uint32_t lanes) {
  Block& block = *warp.block;
  drop(warp.fragments[index].frame);
  warp.fragments.erase(warp.fragments.begin() + static_cast<std::ptrdiff_t>(index));
  set_ready(warp, std::any_of(warp.fragments.begin(), warp.fragments.end(),
                              [](const Fragment& one) { return !one.waits; }));
  block.living -= static_cast<std::uint32_t>(std::popcount(lanes));
  if (block.living == 0) {
    --block.launch->living;
  } else if (block.waiting == block.living) {
    release_barrier(block);
  }
}

void Machine::wait(Warp& warp, std::size_t index) {
  Block& block = *warp.block;
  warp.fragments[index].waits = true;
  block.waiting += static_cast<std::uint32_t>(std::popcount(warp.fragments[index].lanes));
  if (warp.fragments.size() > 1) merge(warp, index);
  set_ready(warp, std::any_of(warp.fragments.begin(), warp.fragments.end(),
                              [](const Fragment& other) { return !other.waits; }));
  if (block.waiting == block.living) release_barrier(block);
}

void Machine::release_barrier(Block& block) {
  std::set<const Instruction*> places;
  bool all = true;
  bool any = false;
  for (const auto& warp : block.warps) {
    for (const Fragment& fragment : warp->fragments) {
      const Instruction& at = fragment.frame->function->code[fragment.next];
      places.insert(&at);
      if (at.op == Op::bar_sync) continue;
      const std::uint32_t said =
          Execution{*this, *warp, *fragment.frame, fragment.lanes}.condition(at.in[0]) &
          fragment.lanes;
      all = all && said == fragment.lanes;
      any = any || said != 0;
    }
  }
  if (places.size() > 1) {
    std::string what = "barrier: threads of one block meet at different places:";
    for (const Instruction* place : places) what += " " + module_.describe(*place) + ";";
    settings_.found(what);
  }
  if (settings_.races) clocks_.barrier(block.clock);
  block.waiting = 0;
  for (auto& warp : block.warps) {
    for (Fragment& fragment : warp->fragments) {
      const Instruction& at = fragment.frame->function->code[fragment.next];
      if (at.op != Op::bar_sync) {
        const bool result = at.op == Op::bar_and ? all : any;
        Execution{*this, *warp, *fragment.frame, fragment.lanes}.set_condition(at.out[0],
                                                                               result ? ~0U : 0);
      }
      ++fragment.next;
      fragment.waits = false;
    }
    for (std::size_t i = warp->fragments.size(); i-- > 1;) merge(*warp, i);
    set_ready(*warp, !warp->fragments.empty());
  }
}

bool Machine::run(std::uint64_t most_turns) {
  const auto all_ended = [&] {
    return std::all_of(launches_.begin(), launches_.end(),
                       [](const auto& launch) { return launch->ended(); });
  };
  for (std::uint64_t i = 0; i < most_turns; ++i) {
    if (turn()) continue;
    if (all_ended()) return true;
    explain_deadlock();
    return false;
  }
  settings_.found("no end: after " + std::to_string(most_turns) + " turns threads still run");
  return false;
}

void Machine::explain_deadlock() {
  std::string what = "deadlock:";
  for (const auto& launch : launches_) {
    for (const auto& block : launch->blocks) {
      if (block->living == 0) continue;
      what += " block " + std::to_string(block->index) + " of device " +
              std::to_string(launch->device) + " waits with " + std::to_string(block->waiting) +
              " of " + std::to_string(block->living) + " threads;";
    }
  }
  settings_.found(what);
}

}  // namespace ptx
