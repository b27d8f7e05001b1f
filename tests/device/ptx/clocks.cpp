#include "clocks.hpp"

#include <algorithm>
#include <bit>
#include <stdexcept>

namespace ptx {
namespace {

/// An entry of `all` that nobody uses.
std::uint32_t take(auto& all, std::vector<std::uint32_t>& free) {
  if (free.empty()) {
    all.emplace_back();
    return static_cast<std::uint32_t>(all.size()) - 1;
  }
  const std::uint32_t found = free.back();
  free.pop_back();
  return found;
}

}  // namespace

void Knowledge::join(const Knowledge& other) {
  for (std::size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], other.clock[i]);
  for (const Point& point : other.points) {
    const auto same = std::find_if(points.begin(), points.end(), [&](const Point& mine) {
      return mine.block == point.block && mine.thread == point.thread;
    });
    if (same == points.end()) {
      points.push_back(point);
    } else if (same->epoch < point.epoch ||
               (same->epoch == point.epoch && same->release < point.release)) {
      *same = point;
    }
  }
  std::erase_if(points, [&](const Point& point) { return point.epoch < clock[point.block]; });
}

void Clocks::begin(BlockClock& block, std::uint32_t device) {
  constexpr std::size_t kMostPages = 4096;
  if (in_use_.none() && pages_.size() > kMostPages) forget_all();
  std::uint32_t number = 0;
  // What is remembered of a number's earlier blocks is of the same device.
  while (number < kMostBlocks &&
         (in_use_[number] || (had_[number] && devices_[number] != device))) {
    ++number;
  }
  if (number == kMostBlocks) throw std::runtime_error("more blocks at a time than clocks");
  in_use_[number] = true;
  had_[number] = true;
  devices_[number] = device;
  block.number = number;
  block.device = device;
  block.known.clock = ended_;
  block.known.points.clear();
  ++block.known.clock[number];
}

void Clocks::end(BlockClock& block) {
  barrier(block);
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    ended_[i] = std::max(ended_[i], block.known.clock[i]);
  }
  in_use_[block.number] = false;
}

void Clocks::barrier(BlockClock& block) {
  if (block.num_more > 0) {
    for (auto& more : block.more) {
      if (!more) continue;
      block.known.join(*more);
      more.reset();
    }
    block.num_more = 0;
  }
  block.releases.fill(0);
  ++block.known.clock[block.number];
}

// All that was done has been seen by whoever begins now.
void Clocks::forget_all() {
  pages_.clear();
  last_page_ = ~std::uint64_t{0};
  more_.resize(1);
  released_.resize(1);
  free_more_.clear();
  free_released_.clear();
}

void Clocks::drop(Cell& cell) {
  if (cell.more != 0) {
    more_[cell.more].clear();
    free_more_.push_back(cell.more);
  }
  if (cell.released != 0) free_released_.push_back(cell.released);
  cell = {};
}

void Clocks::forget(std::uint64_t address, std::uint64_t bytes) {
  const std::uint64_t end = address + bytes;
  for (std::uint64_t at = address; at < end; at = (at / kPage + 1) * kPage) {
    const auto page = pages_.find(at / kPage);
    if (page == pages_.end()) continue;
    const std::uint64_t first = at % kPage / 4;
    const std::uint64_t last = std::min(end - at / kPage * kPage, kPage);
    for (std::uint64_t i = first; 4 * i < last; ++i) drop((*page->second)[i]);
  }
}

Clocks::Cell& Clocks::cell(std::uint64_t address) {
  const std::uint64_t page = address / kPage;
  if (page != last_page_) {
    std::unique_ptr<Page>& found = pages_[page];
    if (!found) found = std::make_unique<Page>();
    last_ = found.get();
    last_page_ = page;
  }
  return (*last_)[address % kPage / 4];
}

void Clocks::access(BlockClock& block, std::uint32_t first_thread, std::uint32_t lanes,
                    const Lanes& addresses, std::uint32_t bytes, const Instruction& instruction,
                    bool writes) {
  const auto first = static_cast<std::uint32_t>(std::countr_zero(lanes));
  bool uniform = !writes && block.num_more == 0 && (lanes & (lanes - 1)) != 0;
  for (std::uint32_t rest = lanes; uniform && rest != 0; rest &= rest - 1) {
    uniform = addresses[static_cast<std::uint32_t>(std::countr_zero(rest))] == addresses[first];
  }
  if (uniform) {  // one access for all of them
    touch(block, kSeveral, addresses[first], bytes, instruction, writes);
    return;
  }
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const auto lane = static_cast<std::uint32_t>(std::countr_zero(rest));
    touch(block, static_cast<std::uint16_t>(first_thread + lane), addresses[lane], bytes,
          instruction, writes);
  }
}

void Clocks::touch(BlockClock& block, std::uint16_t thread, std::uint64_t address,
                   std::uint32_t bytes, const Instruction& instruction, bool writes) {
  if (!host_.empty()) check_host(address, instruction);
  Access now;
  now.epoch = block.known.clock[block.number];
  now.release = thread == kSeveral ? 0 : block.releases[thread];
  now.instruction = instruction.index;
  now.thread = thread;
  now.block = static_cast<std::uint8_t>(block.number);
  now.strong = instruction.order == Order::weak ? 0 : 1;
  now.scope = static_cast<std::uint8_t>(instruction.scope) & 3;
  now.write = writes ? 1 : 0;
  for (std::uint32_t done = 0; done < bytes;) {
    const auto within = static_cast<std::uint32_t>((address + done) % 4);
    const std::uint32_t part = std::min(4 - within, bytes - done);
    now.bytes = static_cast<std::uint8_t>(((1U << part) - 1) << within) & 15;
    touch_cell(block, cell(address + done), now, address + done);
    done += part;
  }
}

void Clocks::touch_cell(BlockClock& block, Cell& cell, const Access& now, std::uint64_t address) {
  const auto conflicts = [&](const Access& before) {
    return before.block != 0xff && (before.bytes & now.bytes) != 0 && (before.write || now.write) &&
           !ordered(before, block, now) && !both_strong(before, now);
  };
  if (conflicts(cell.write)) report(cell.write, now, address);
  if (now.write && conflicts(cell.read)) report(cell.read, now, address);
  if (cell.more != 0) {
    for (const Access& before : more_[cell.more]) {
      if (conflicts(before)) report(before, now, address);
    }
  }
  remember(cell, now, block);
}

bool Clocks::ordered(const Access& before, const BlockClock& block, const Access& now) const {
  const auto seen = [&](const Knowledge& known, std::uint16_t thread) {
    if (before.epoch < known.clock[before.block]) return true;
    if (before.block == block.number && before.thread == thread && thread != kSeveral) return true;
    return std::any_of(known.points.begin(), known.points.end(), [&](const Point& point) {
      return point.block == before.block && point.thread == before.thread &&
             point.epoch == before.epoch && before.release < point.release;
    });
  };
  if (now.thread == kSeveral) return seen(block.known, kSeveral);
  return seen(block.of(now.thread), now.thread);
}

bool Clocks::reaches(Scope scope, std::uint32_t from, std::uint32_t to) {
  return scope == Scope::system || (scope == Scope::device && from == to);
}

// Morally strong: each one's scope has the other in it.
bool Clocks::both_strong(const Access& before, const Access& now) const {
  if (!before.strong || !now.strong) return false;
  const std::uint32_t from = devices_[before.block];
  const std::uint32_t to = devices_[now.block];
  if (before.block == now.block) return true;
  return reaches(static_cast<Scope>(before.scope), from, to) &&
         reaches(static_cast<Scope>(now.scope), to, from);
}

void Clocks::remember(Cell& cell, const Access& now, const BlockClock& block) {
  const auto covered = [&](const Access& before) { return (before.bytes & ~now.bytes) == 0; };
  if (now.write) {
    if (cell.released != 0) free_released_.push_back(cell.released);
    cell.released = 0;
    if (cell.more != 0) {
      std::erase_if(more_[cell.more], covered);
      if (more_[cell.more].empty()) {
        free_more_.push_back(cell.more);
        cell.more = 0;
      }
    }
    if (covered(cell.read)) cell.read.block = 0xff;
    if (cell.write.block == 0xff || covered(cell.write)) {
      cell.write = now;
      return;
    }
  } else {
    Access& last = cell.read;
    if (last.block == now.block && last.bytes == now.bytes) {
      // In one epoch the weaker one counts, and that it was several threads.
      const bool several = last.epoch == now.epoch && last.thread != now.thread;
      const bool weaker =
          last.epoch == now.epoch && (last.strong < now.strong || last.scope < now.scope);
      if (!weaker) last = now;
      if (several) last.thread = kSeveral;
      return;
    }
    if (last.block == 0xff || (ordered(last, block, now) && covered(last))) {
      last = now;
      return;
    }
  }
  if (cell.more == 0) cell.more = take(more_, free_more_);
  std::vector<Access>& more = more_[cell.more];
  // What is as old as the newest of its block and kind tells nothing more.
  std::erase_if(more, [&](const Access& before) {
    return before.write == now.write && covered(before) &&
           (before.block == now.block ? before.epoch < now.epoch || before.thread == now.thread
                                      : ordered(before, block, now));
  });
  const bool known = std::any_of(more.begin(), more.end(), [&](const Access& before) {
    return before.block == now.block && before.epoch == now.epoch && before.write == now.write &&
           before.thread == kSeveral && before.bytes == now.bytes && before.strong <= now.strong;
  });
  if (!known) more.push_back(now);
}

void Clocks::report(const Access& before, const Access& now, std::uint64_t address) {
  const auto one = [&](const Access& access) {
    return std::string(access.write ? "write" : "read") + " by block " +
           std::to_string(access.block) +
           (access.thread == kSeveral ? "" : " thread " + std::to_string(access.thread)) + " at " +
           module_.describe(*module_.instructions()[access.instruction]);
  };
  found_("race: " + one(before) + "; " + one(now) + "; bytes at " +
         std::to_string(address % kPage));
}

void Clocks::release(BlockClock& block, std::uint32_t thread, std::uint64_t address,
                     const Instruction& by) {
  Cell& at = cell(address);
  Released made{block.of(thread), by.scope, block.device, by.index};
  made.knowledge.points.push_back(
      {static_cast<std::uint16_t>(block.number), static_cast<std::uint16_t>(thread),
       block.known.clock[block.number], static_cast<std::uint32_t>(block.releases[thread]) + 1});
  ++block.releases[thread];
  at.released = take(released_, free_released_);
  released_[at.released] = std::move(made);
}

void Clocks::acquire(BlockClock& block, std::uint32_t thread, std::uint64_t address,
                     const Instruction& by) {
  const std::uint32_t index = cell(address).released;
  if (index == 0) return;
  const Released& from = released_[index];
  if (!reaches(from.scope, from.device, block.device) ||
      !reaches(by.scope, block.device, from.device)) {
    found_("scope: " + module_.describe(by) + " does not reach " +
           module_.describe(*module_.instructions()[from.instruction]));
    return;
  }
  std::unique_ptr<Knowledge>& more = block.more[thread];
  if (!more) {
    more = std::make_unique<Knowledge>(block.known);
    ++block.num_more;
  }
  more->join(from.knowledge);
}

void Clocks::told(std::uint64_t flag, const std::vector<std::uint64_t>& words) {
  const std::uint32_t index = cell(flag).released;
  if (index == 0 || released_[index].scope != Scope::system) {
    found_("scope: what the host is told is not released to it");
    return;
  }
  for (const std::uint64_t word : words) complete(released_[index].knowledge, word, 4);
}

void Clocks::complete(const Knowledge& known, std::uint64_t address, std::uint64_t bytes) {
  for (std::uint64_t at = address; at < address + bytes; ++at) {
    const Access& write = cell(at).write;
    if (write.block == 0xff || write.epoch < known.clock[write.block]) continue;
    const bool seen =
        std::any_of(known.points.begin(), known.points.end(), [&](const Point& point) {
          return point.block == write.block && point.thread == write.thread &&
                 point.epoch == write.epoch && write.release < point.release;
        });
    if (seen) continue;
    found_("race: read before it is written by " +
           module_.describe(*module_.instructions()[write.instruction]));
    return;
  }
}

void Clocks::share_with_host(std::uint64_t address, std::uint64_t bytes) {
  host_.emplace_back(address, address + bytes);
}

void Clocks::check_host(std::uint64_t address, const Instruction& instruction) {
  for (const auto& [begin, end] : host_) {
    if (address < begin || address >= end) continue;
    if (instruction.order == Order::weak || instruction.scope != Scope::system) {
      found_("scope: the host's memory is not reached by " + module_.describe(instruction));
    }
  }
}

}  // namespace ptx
