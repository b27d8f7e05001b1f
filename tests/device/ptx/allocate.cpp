// Storage for registers: nvcc emits a new register for nearly every value, thousands in one kernel,
// few of which hold anything at one time. A linear scan over live intervals, as compilers do.
#include <algorithm>
#include <functional>
#include <limits>

#include "module.hpp"

namespace ptx {
namespace {

/// Registers of one kind: general ones or predicates.
class Lives {
 public:
  Lives(Function& function, std::uint32_t number, bool predicates)
      : function_(function), predicates_(predicates), words_((number + 63) / 64), number_(number) {}

  /// [register]: its slot. Returns the number of slots.
  std::uint32_t allocate(std::vector<std::uint32_t>& slots) {
    find_blocks();
    propagate();
    return scan(slots);
  }

 private:
  using Bits = std::vector<std::uint64_t>;
  struct Block {
    std::uint32_t begin, end;
    std::vector<std::uint32_t> next;  ///< blocks
    Bits uses, defines, in, out;
  };

  static bool is_kind(const Instruction& one, const Value& value, bool predicates,
                      bool predicate_place) {
    (void)one;
    return value.used && value.fixed == nullptr && predicates == predicate_place;
  }
  static bool writes_predicate(const Instruction& one) {
    return one.op == Op::setp || one.op == Op::bar_and || one.op == Op::bar_or ||
           (one.op >= Op::pred_and && one.op <= Op::pred_mov);
  }
  static bool reads_predicate(const Instruction& one, std::size_t operand) {
    if (one.op >= Op::pred_and && one.op <= Op::pred_mov) return true;
    if (one.op == Op::bar_and || one.op == Op::bar_or) return true;
    return operand == 2 && (one.op == Op::setp || one.op == Op::selp);
  }

  void visit(const Instruction& one, const std::function<void(std::uint32_t)>& use,
             const std::function<void(std::uint32_t)>& define) const {
    if (predicates_ && one.guard.used) use(one.guard.slot);
    for (std::size_t i = 0; i < one.in.size(); ++i) {
      if (is_kind(one, one.in[i], predicates_, reads_predicate(one, i))) use(one.in[i].slot);
    }
    if (!predicates_) {
      for (const auto& [mine, theirs] : one.arguments) use(mine);
      for (const auto& [mine, theirs] : one.results) define(mine);
      if (one.op == Op::ret) {
        for (const std::uint32_t result : function_.results) use(result);
      }
    }
    for (const Value& out : one.out) {
      if (!is_kind(one, out, predicates_, writes_predicate(one))) continue;
      if (one.guard.used) use(out.slot);  // what it held stays where the guard is false
      define(out.slot);
    }
  }

  void find_blocks() {
    const auto size = static_cast<std::uint32_t>(function_.code.size());
    std::vector<bool> begins(size + 1, false);
    begins[0] = true;
    const auto jumps = [&](const Instruction& one, const auto& to) {
      if (one.op == Op::bra) to(one.target);
      for (const std::uint32_t target : one.targets) to(target);
    };
    for (std::uint32_t i = 0; i < size; ++i) {
      const Instruction& one = function_.code[i];
      if (one.op != Op::bra && one.op != Op::brx && one.op != Op::ret) continue;
      begins[i + 1] = true;
      jumps(one, [&](std::uint32_t target) { begins[target] = true; });
    }
    std::vector<std::uint32_t> block_of(size + 1, 0);
    for (std::uint32_t i = 0; i < size; ++i) {
      if (begins[i]) blocks_.push_back({i, i, {}, {}, {}, {}, {}});
      block_of[i] = static_cast<std::uint32_t>(blocks_.size()) - 1;
      blocks_.back().end = i + 1;
    }
    for (Block& block : blocks_) {
      const Instruction& last = function_.code[block.end - 1];
      jumps(last, [&](std::uint32_t target) { block.next.push_back(block_of[target]); });
      const bool goes_on =
          last.guard.used || (last.op != Op::bra && last.op != Op::ret && last.op != Op::brx);
      if (goes_on && block.end < size) block.next.push_back(block_of[block.end]);
      summarize(block);
    }
  }

  void summarize(Block& block) {
    for (Bits* bits : {&block.uses, &block.defines, &block.in, &block.out}) bits->assign(words_, 0);
    for (std::uint32_t i = block.begin; i < block.end; ++i) {
      visit(
          function_.code[i],
          [&](std::uint32_t r) {
            if ((block.defines[r / 64] >> (r % 64) & 1) == 0)
              block.uses[r / 64] |= 1ULL << (r % 64);
          },
          [&](std::uint32_t r) { block.defines[r / 64] |= 1ULL << (r % 64); });
    }
  }

  void propagate() {
    for (bool changed = true; changed;) {
      changed = false;
      for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) {
        for (const std::uint32_t next : block->next) {
          for (std::size_t w = 0; w < words_; ++w) block->out[w] |= blocks_[next].in[w];
        }
        for (std::size_t w = 0; w < words_; ++w) {
          const std::uint64_t in = block->uses[w] | (block->out[w] & ~block->defines[w]);
          changed = changed || in != block->in[w];
          block->in[w] = in;
        }
      }
    }
  }

  std::uint32_t scan(std::vector<std::uint32_t>& slots) {
    constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();
    std::vector<std::uint32_t> first(number_, kNever), last(number_, 0);
    const auto lives = [&](std::uint32_t r, std::uint32_t at) {
      first[r] = std::min(first[r], at);
      last[r] = std::max(last[r], at);
    };
    for (const Block& block : blocks_) {
      for (std::uint32_t r = 0; r < number_; ++r) {
        if ((block.in[r / 64] >> (r % 64) & 1) != 0) lives(r, block.begin);
        if ((block.out[r / 64] >> (r % 64) & 1) != 0) lives(r, block.end);
      }
      for (std::uint32_t i = block.begin; i < block.end; ++i) {
        const auto here = [&](std::uint32_t r) { lives(r, i); };
        visit(function_.code[i], here, here);
      }
    }
    if (!predicates_) {
      for (const std::uint32_t parameter : function_.parameters) lives(parameter, 0);
    }
    std::vector<std::uint32_t> order;
    for (std::uint32_t r = 0; r < number_; ++r) {
      if (first[r] != kNever) order.push_back(r);
    }
    std::sort(order.begin(), order.end(),
              [&](std::uint32_t a, std::uint32_t b) { return first[a] < first[b]; });
    slots.assign(number_, 0);
    std::vector<std::uint32_t> busy_until;  // [slot]
    std::vector<std::pair<std::uint32_t, std::uint32_t>> active;
    for (const std::uint32_t r : order) {
      std::uint32_t slot = 0;
      while (slot < busy_until.size() && busy_until[slot] >= first[r]) ++slot;
      if (slot == busy_until.size()) busy_until.push_back(0);
      busy_until[slot] = last[r];
      slots[r] = slot;
    }
    return static_cast<std::uint32_t>(busy_until.size());
  }

  Function& function_;
  bool predicates_;
  std::size_t words_;
  std::uint32_t number_;
  std::vector<Block> blocks_;

 public:
  void rename(const std::vector<std::uint32_t>& slots) {
    for (Instruction& one : function_.code) {
      if (predicates_ && one.guard.used && one.guard.fixed == nullptr)
        one.guard.slot = slots[one.guard.slot];
      for (std::size_t i = 0; i < one.in.size(); ++i) {
        if (is_kind(one, one.in[i], predicates_, reads_predicate(one, i)))
          one.in[i].slot = slots[one.in[i].slot];
      }
      for (Value& out : one.out) {
        if (is_kind(one, out, predicates_, writes_predicate(one))) out.slot = slots[out.slot];
      }
      if (predicates_) continue;
      for (auto& [mine, theirs] : one.arguments) mine = slots[mine];
      for (auto& [mine, theirs] : one.results) mine = slots[mine];
    }
    if (predicates_) return;
    for (std::uint32_t& parameter : function_.parameters) parameter = slots[parameter];
    for (std::uint32_t& result : function_.results) result = slots[result];
  }
};

}  // namespace

void allocate_slots(Function& function, std::uint32_t registers, std::uint32_t predicates) {
  std::vector<std::uint32_t> slots;
  Lives general(function, registers, false);
  function.registers = general.allocate(slots);
  general.rename(slots);
  Lives conditions(function, predicates, true);
  function.predicates = conditions.allocate(slots);
  conditions.rename(slots);
}

}  // namespace ptx
