// PTX that nvcc emitted, decoded once into instructions that a warp executes for all of its lanes
// at a time: registers are numbered and share storage where their lives do not overlap.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

inline constexpr std::uint32_t kLanes = 32;

/// One value per lane.
using Lanes = std::array<std::uint64_t, kLanes>;

enum class Type : std::uint8_t {
  pred,
  b8,
  b16,
  b32,
  b64,
  u8,
  u16,
  u32,
  u64,
  s8,
  s16,
  s32,
  s64,
  f16,
  bf16,
  f32,
  f64
};
enum class Space : std::uint8_t { generic, global, shared, local, param };
enum class Order : std::uint8_t { weak, relaxed, acquire, release, acq_rel };
enum class Scope : std::uint8_t { none, block, device, system };

enum class Op : std::uint8_t {
  mov,
  pack,
  unpack,
  special,
  local_address,
  to_shared,
  from_shared,
  cvt,
  add,
  sub,
  mul,
  mul_wide,
  mul_high,
  mad,
  mad_wide,
  fma,
  div,
  rem,
  shl,
  shr,
  bit_and,
  bit_or,
  bit_xor,
  bit_not,
  neg,
  abs,
  min,
  max,
  setp,
  selp,
  prmt,
  bfi,
  bfe,
  popc,
  clz,
  lop3,
  pred_and,
  pred_or,
  pred_xor,
  pred_not,
  pred_mov,
  load,
  store,
  atom_add,
  atom_cas,
  atom_exch,
  fence,
  bra,
  brx,
  call,
  ret,
  bar_sync,
  bar_and,
  bar_or,
  nanosleep,
  trap,
  nop,
};
enum class Compare : std::uint8_t {
  eq,
  ne,
  lt,
  le,
  gt,
  ge,
  equ,
  neu,
  ltu,
  leu,
  gtu,
  geu,
  num,
  nan
};
enum class Round : std::uint8_t { nearest, zero, down, up };
enum class Special : std::uint8_t { tid, ntid, ctaid, nctaid, lane, timer };

/// A register, a predicate or a constant.
struct Value {
  const Lanes* fixed = nullptr;  ///< a constant
  std::uint32_t slot = 0;        ///< of a register or a predicate
  bool used = false;
  bool negated = false;
};

struct Function;

struct Instruction {
  Op op = Op::nop;
  Type type = Type::b32;
  Type from = Type::b32;
  Space space = Space::generic;
  Order order = Order::weak;
  Scope scope = Scope::none;
  Compare compare = Compare::eq;
  Round round = Round::nearest;
  Special special = Special::tid;
  std::uint8_t width = 1;  ///< elements of a vector
  char combine = 0;        ///< of setp: '&', '|' or '^' with `in[2]`
  Value guard;             ///< a predicate
  std::array<Value, 4> out;
  std::array<Value, 5> in;             ///< of loads and stores: in[4] is the address
  std::int64_t offset = 0;             ///< of that
  std::uint32_t target = 0;            ///< of bra: instruction
  std::vector<std::uint32_t> targets;  ///< of brx
  /// Of call: registers of the caller and the callee that are one.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> arguments, results;
  const Function* callee = nullptr;
  const Function* owner = nullptr;
  std::uint32_t line = 0;   ///< of the text
  std::uint32_t index = 0;  ///< in the module
  std::string site;         ///< file:line of the source, where the text has it
};

struct Function {
  std::string name;
  bool entry = false;
  std::vector<Instruction> code;
  std::uint32_t registers = 0;  ///< slots
  std::uint32_t predicates = 0;
  std::uint64_t local_bytes = 0;
  std::vector<std::uint32_t> parameters, results;  ///< slots of functions that are called
  std::uint64_t parameter_bytes = 0;               ///< of entries
};

class Module {
 public:
  /// Throws std::runtime_error naming line and text of what it does not know.
  explicit Module(std::string_view text);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  [[nodiscard]] const Function& function(const std::string& name) const;
  [[nodiscard]] std::uint64_t shared_bytes() const { return shared_bytes_; }
  /// All of them, by their index.
  [[nodiscard]] const std::vector<Instruction*>& instructions() const { return instructions_; }
  /// For messages: function, line and text.
  [[nodiscard]] std::string describe(const Instruction& instruction) const;

 private:
  friend class Parser;

  const Lanes* constant(std::uint64_t value);

  std::map<std::string, std::unique_ptr<Function>> functions_;
  std::map<std::string, std::uint64_t> shared_;
  std::uint64_t shared_bytes_ = 0;
  std::map<std::uint64_t, const Lanes*> constants_;
  std::deque<Lanes> lanes_;
  std::vector<Instruction*> instructions_;
  std::string text_;
};

/// Gives registers whose lives do not overlap the same storage.
void allocate_slots(Function& function, std::uint32_t registers, std::uint32_t predicates);

[[nodiscard]] constexpr std::uint32_t size_of(Type type) {
  switch (type) {
    case Type::pred:
    case Type::b8:
    case Type::u8:
    case Type::s8:
      return 1;
    case Type::b16:
    case Type::u16:
    case Type::s16:
    case Type::f16:
    case Type::bf16:
      return 2;
    case Type::b32:
    case Type::u32:
    case Type::s32:
    case Type::f32:
      return 4;
    default:
      return 8;
  }
}
[[nodiscard]] constexpr bool is_signed(Type type) { return type >= Type::s8 && type <= Type::s64; }
[[nodiscard]] constexpr bool is_float(Type type) { return type >= Type::f16; }

}  // namespace ptx
