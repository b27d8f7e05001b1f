// Loads, stores and atomic operations of the lanes of a warp.
#include <time.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "execution.hpp"

namespace ptx {
namespace {

/// The host, other processes and carriers of messages use the same memory meanwhile.
template <class T>
T read(std::uint64_t address) {
  return __atomic_load_n(reinterpret_cast<const T*>(address), __ATOMIC_ACQUIRE);
}
template <class T>
void write(std::uint64_t address, std::uint64_t value) {
  __atomic_store_n(reinterpret_cast<T*>(address), static_cast<T>(value), __ATOMIC_RELEASE);
}

std::uint64_t extended(std::uint64_t value, Type type) {
  switch (type) {
    case Type::s8:
      return static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int8_t>(value)));
    case Type::s16:
      return static_cast<std::uint64_t>(
          static_cast<std::int64_t>(static_cast<std::int16_t>(value)));
    case Type::s32:
      return static_cast<std::uint64_t>(
          static_cast<std::int64_t>(static_cast<std::int32_t>(value)));
    default:
      return value;
  }
}

bool acquires(Order order) { return order == Order::acquire || order == Order::acq_rel; }
bool releases(Order order) { return order == Order::release || order == Order::acq_rel; }

}  // namespace

// Local memory, which no other thread sees.
bool Execution::is_own(std::uint64_t begin, std::uint64_t end) const {
  const auto stack = reinterpret_cast<std::uint64_t>(warp.stack.data());
  return begin >= stack && end <= stack + warp.stack.size();
}

// A kernel's memory is its own, its block's, its parameters, and what the settings say.
bool Execution::is_known(std::uint64_t begin, std::uint64_t end) const {
  if (is_own(begin, end)) return true;
  const auto is_in = [&](std::uint64_t first, std::uint64_t last) {
    return begin >= first && end <= last;
  };
  const Block& block = *warp.block;
  for (const std::vector<std::byte>* memory : {block.shared, &block.launch->parameters}) {
    const auto first = reinterpret_cast<std::uint64_t>(memory->data());
    if (is_in(first, first + memory->size())) return true;
  }
  return std::any_of(machine.ranges_.begin(), machine.ranges_.end(),
                     [&](const Range& range) { return is_in(range.first, range.second); });
}

Execution::Places Execution::places(const Instruction& one, std::uint32_t bytes) const {
  Places found;
  const Lanes& base = in(one.in[4]);
  std::uint64_t offset = static_cast<std::uint64_t>(one.offset);
  const Block& block = *warp.block;
  if (one.space == Space::shared) offset += reinterpret_cast<std::uint64_t>(block.shared->data());
  if (one.space == Space::param) {
    offset += reinterpret_cast<std::uint64_t>(block.launch->parameters.data());
  }
  std::uint64_t lowest = ~std::uint64_t{0};
  std::uint64_t highest = 0;
  std::uint64_t bits = 0;
  each([&](std::uint32_t l) {
    const std::uint64_t at = base[l] + offset;
    found.at[l] = at;
    bits |= at;
    lowest = std::min(lowest, at);
    highest = std::max(highest, at);
  });
  found.uniform = lowest == highest;
  const bool one_block = bits % bytes == 0 && is_known(lowest, highest + bytes);
  if (!one_block) {
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      check(found.at[static_cast<std::uint32_t>(std::countr_zero(rest))], bytes, one);
    }
  }
  if (one.space == Space::param || one.space == Space::local) return found;
  if (one_block) {
    found.shared = is_own(lowest, highest + bytes) ? 0 : lanes;
  } else {
    each([&](std::uint32_t l) {
      found.shared |= is_own(found.at[l], found.at[l] + bytes) ? 0 : 1U << l;
    });
  }
  return found;
}

void Execution::check(std::uint64_t address, std::uint32_t bytes, const Instruction& one) const {
  if (address % bytes != 0) {
    machine.found("misaligned: " + machine.module_.describe(one));
    throw std::runtime_error("misaligned address");
  }
  if (!machine.settings_.memory || is_known(address, address + bytes)) return;
  const Range range = machine.settings_.memory(address);
  if (address < range.first || address + bytes > range.second) {
    machine.found("outside of memory: " + machine.module_.describe(one));
    throw std::runtime_error("an address outside of memory");
  }
  if (machine.ranges_.size() >= 8) machine.ranges_.erase(machine.ranges_.begin());
  machine.ranges_.push_back(range);
}

template <class T>
void Execution::access(const Instruction& one, const Places& places) const {
  for (std::uint32_t i = 0; i < one.width; ++i) {
    const std::uint64_t offset = i * sizeof(T);
    if (one.op == Op::store) {
      const Lanes& from = in(one.in[i]);
      each([&](std::uint32_t l) { write<T>(places.at[l] + offset, from[l]); });
      continue;
    }
    Lanes& to = out(one.out[i]);
    if (places.uniform) {
      const auto first = static_cast<std::uint32_t>(std::countr_zero(lanes));
      const std::uint64_t value = extended(read<T>(places.at[first] + offset), one.type);
      each([&](std::uint32_t l) { to[l] = value; });
    } else {
      each([&](std::uint32_t l) { to[l] = extended(read<T>(places.at[l] + offset), one.type); });
    }
  }
}

void Execution::memory(const Instruction& one) const {
  const std::uint32_t bytes = size_of(one.type);
  const bool loads = one.op == Op::load;
  const Places at = places(one, bytes * one.width);
  BlockClock& clock = warp.block->clock;
  const std::uint32_t shared = machine.settings_.races ? at.shared : 0;
  if (shared != 0) {
    machine.clocks_.access(clock, warp.first_thread, shared, at.at, bytes * one.width, one, !loads);
  }
  switch (bytes) {
    case 1:
      access<std::uint8_t>(one, at);
      break;
    case 2:
      access<std::uint16_t>(one, at);
      break;
    case 4:
      access<std::uint32_t>(one, at);
      break;
    default:
      access<std::uint64_t>(one, at);
  }
  const auto ordered = [&](bool wanted, auto&& f) {
    for (std::uint32_t rest = wanted ? shared : 0; rest != 0; rest &= rest - 1) {
      const auto l = static_cast<std::uint32_t>(std::countr_zero(rest));
      f(clock, warp.first_thread + l, at.at[l], one);
    }
  };
  if (loads) {
    ordered(acquires(one.order), [&](auto&&... given) { machine.clocks_.acquire(given...); });
    if (one.order != Order::weak) warp.block->polls.load(one, lanes, at.at, out(one.out[0]));
  } else {
    ordered(releases(one.order), [&](auto&&... given) { machine.clocks_.release(given...); });
  }
}

void Execution::atomic(const Instruction& one) const {
  if (size_of(one.type) != 8) throw std::runtime_error("PTX: an atomic of another size than 8");
  const Lanes at = places(one, 8).at;
  Block& block = *warp.block;
  each([&](std::uint32_t l) {
    const std::uint32_t thread = warp.first_thread + l;
    auto* const word = reinterpret_cast<std::uint64_t*>(at[l]);
    const std::uint64_t operand = in(one.in[0])[l];
    if (machine.settings_.races) {
      if (acquires(one.order)) machine.clocks_.acquire(block.clock, thread, at[l], one);
      machine.clocks_.access(block.clock, warp.first_thread, 1U << l, at, 8, one, true);
      if (releases(one.order)) machine.clocks_.release(block.clock, thread, at[l], one);
    }
    std::uint64_t before = operand;
    if (one.op == Op::atom_add) {
      before = __atomic_fetch_add(word, operand, __ATOMIC_ACQ_REL);
    } else if (one.op == Op::atom_exch) {
      before = __atomic_exchange_n(word, operand, __ATOMIC_ACQ_REL);
    } else {
      __atomic_compare_exchange_n(word, &before, in(one.in[1])[l], false, __ATOMIC_ACQ_REL,
                                  __ATOMIC_ACQUIRE);
    }
    out(one.out[0])[l] = before;
  });
}

void Execution::misc(const Instruction& one) const {
  const Block& block = *warp.block;
  switch (one.op) {
    case Op::mov: {
      const Lanes& from = in(one.in[0]);
      Lanes& to = out(one.out[0]);
      const std::uint32_t bytes = size_of(one.type);
      const std::uint64_t mask =
          bytes == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * bytes) - 1;
      return each([&](std::uint32_t l) { to[l] = from[l] & mask; });
    }
    case Op::unpack:
    case Op::pack: {
      const std::uint32_t width = 8 * size_of(one.type) / one.width;
      const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
      return each([&](std::uint32_t l) {
        std::uint64_t all = one.op == Op::unpack ? in(one.in[0])[l] : 0;
        for (std::uint32_t i = 0; i < one.width; ++i) {
          if (one.op == Op::pack) {
            all |= (in(one.in[i])[l] & mask) << (width * i);
          } else {
            out(one.out[i])[l] = all >> (width * i) & mask;
          }
        }
        if (one.op == Op::pack) out(one.out[0])[l] = all;
      });
    }
    case Op::from_shared:
    case Op::to_shared: {
      std::uint64_t base = reinterpret_cast<std::uint64_t>(
          one.space == Space::param ? block.launch->parameters.data() : block.shared->data());
      if (one.op == Op::to_shared) base = 0 - base;
      const Lanes& from = in(one.in[0]);
      Lanes& to = out(one.out[0]);
      return each([&](std::uint32_t l) { to[l] = from[l] + base; });
    }
    case Op::local_address: {
      const std::uint64_t each_has = warp.stack.size() / kLanes;
      const std::uint64_t base = reinterpret_cast<std::uint64_t>(warp.stack.data()) + frame.stack -
                                 frame.function->local_bytes +
                                 static_cast<std::uint64_t>(one.offset);
      Lanes& to = out(one.out[0]);
      return each([&](std::uint32_t l) { to[l] = base + l * each_has; });
    }
    default:
      break;
  }
  Lanes& to = out(one.out[0]);
  const auto fill = [&](std::uint64_t value) { each([&](std::uint32_t l) { to[l] = value; }); };
  switch (one.special) {
    case Special::tid:
      return each([&](std::uint32_t l) { to[l] = warp.first_thread + l; });
    case Special::lane:
      return each([&](std::uint32_t l) { to[l] = l; });
    case Special::ntid:
      return fill(block.launch->threads);
    case Special::ctaid:
      return fill(block.index);
    case Special::nctaid:
      return fill(block.launch->blocks.size());
    case Special::timer: {
      timespec now{};
      ::clock_gettime(CLOCK_MONOTONIC, &now);
      return fill(static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
                  static_cast<std::uint64_t>(now.tv_nsec));
    }
  }
}

}  // namespace ptx
