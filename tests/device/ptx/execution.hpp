// What one instruction does to the lanes of a warp.
#pragma once

#include <bit>
#include <cstdint>

#include "machine.hpp"

namespace ptx {

struct Execution {
  Machine& machine;
  Warp& warp;
  Frame& frame;
  std::uint32_t lanes;

  [[nodiscard]] const Lanes& in(const Value& value) const {
    return value.fixed != nullptr ? *value.fixed : frame.registers[value.slot];
  }
  [[nodiscard]] Lanes& out(const Value& value) const { return frame.registers[value.slot]; }
  [[nodiscard]] std::uint32_t condition(const Value& value) const {
    const std::uint32_t bits = value.fixed != nullptr
                                   ? static_cast<std::uint32_t>((*value.fixed)[0])
                                   : frame.predicates[value.slot];
    return value.negated ? ~bits : bits;
  }
  void set_condition(const Value& value, std::uint32_t bits) const {
    std::uint32_t& held = frame.predicates[value.slot];
    held = (held & ~lanes) | (bits & lanes);
  }
  template <class F>
  void each(F&& f) const {
    if (lanes == 0xffffffff) {
#pragma GCC ivdep  // a lane's result depends on no other lane's
      for (std::uint32_t lane = 0; lane < kLanes; ++lane) f(lane);
    } else {
      for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
        f(static_cast<std::uint32_t>(std::countr_zero(rest)));
      }
    }
  }

  void arithmetic(const Instruction& one) const;  // arithmetic.cpp
  void predicate(const Instruction& one) const;
  void convert(const Instruction& one) const;  // convert.cpp
  void memory(const Instruction& one) const;   // memory.cpp
  void atomic(const Instruction& one) const;
  void misc(const Instruction& one) const;

 private:
  /// Where the lanes' accesses lie.
  struct Places {
    Lanes at;
    std::uint32_t shared = 0;  ///< lanes whose access others see: not of local memory
    bool uniform = false;      ///< all at one address
  };
  [[nodiscard]] Places places(const Instruction& one, std::uint32_t bytes) const;
  [[nodiscard]] bool is_own(std::uint64_t begin, std::uint64_t end) const;
  [[nodiscard]] bool is_known(std::uint64_t begin, std::uint64_t end) const;
  void check(std::uint64_t address, std::uint32_t bytes, const Instruction& one) const;
  template <class T>
  void access(const Instruction& one, const Places& places) const;
};

}  // namespace ptx
