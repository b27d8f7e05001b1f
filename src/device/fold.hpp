// Folding what a FoldJob says, in units that fit a protocol. One template for the host and the
// device; all threads of a block work on one job.
#pragma once

#include <cstdint>

#include "device/block.hpp"
#include "device/numbers.hpp"

namespace chorus::device {

// Local memory ----------------------------------------------------------------------------------

// Kernels are given addresses as numbers.
// NOLINTBEGIN(performance-no-int-to-ptr)

/// `bytes` ≤ 8 from any address; the rest of the word is zero.
CHORUS_INLINE std::uint64_t load_word(std::uint64_t from, std::uint64_t bytes) {
  if (bytes >= 8) {
    if ((from & 7) == 0) return *reinterpret_cast<const std::uint64_t*>(from);
    if ((from & 3) == 0) {
      const auto* half = reinterpret_cast<const std::uint32_t*>(from);
      return half[0] | static_cast<std::uint64_t>(half[1]) << 32;
    }
    bytes = 8;
  }
  std::uint64_t word = 0;
  for (std::uint64_t i = 0; i < bytes; ++i) {
    word |= static_cast<std::uint64_t>(reinterpret_cast<const std::uint8_t*>(from)[i]) << (8 * i);
  }
  return word;
}
CHORUS_INLINE void store_word(std::uint64_t to, std::uint64_t word, std::uint64_t bytes) {
  if (bytes >= 8) {
    if ((to & 7) == 0) {
      *reinterpret_cast<std::uint64_t*>(to) = word;
      return;
    }
    if ((to & 3) == 0) {
      auto* half = reinterpret_cast<std::uint32_t*>(to);
      half[0] = static_cast<std::uint32_t>(word);
      half[1] = static_cast<std::uint32_t>(word >> 32);
      return;
    }
    bytes = 8;
  }
  for (std::uint64_t i = 0; i < bytes; ++i) {
    reinterpret_cast<std::uint8_t*>(to)[i] = static_cast<std::uint8_t>(word >> (8 * i));
  }
}
// NOLINTEND(performance-no-int-to-ptr)

// Protocols -------------------------------------------------------------------------------------
// A unit is what one thread handles at a time: one or two 8-byte words of data.

/// The flag of words: 24 bits of the message's number, 8 of the call's tag. A word that is left
/// from 2^24 messages ago would look new: therefore a slot is written to its end once in 2^20.
CHORUS_INLINE constexpr std::uint32_t words_flag(std::uint64_t number, std::uint32_t tag) {
  return static_cast<std::uint32_t>(number & 0xffffff) << 8 | (tag & 0xff);
}
inline constexpr std::uint64_t kPadPeriod = 1 << 20;

struct Words {
  CHORUS_INLINE static std::uint64_t units(std::uint64_t bytes) { return (bytes + 7) / 8; }
  CHORUS_INLINE static std::uint64_t wire_bytes(std::uint64_t bytes) { return units(bytes) * 16; }

  /// 0: not there yet; 1: it is; 2: another call's.
  template <class M>
  CHORUS_INLINE static int load(M& machine, const Source& source, std::uint64_t unit,
                                std::uint64_t* words) {
    std::uint64_t halves[2];
    machine.load_words(source.at + unit * 16, halves);
    const auto a = static_cast<std::uint32_t>(halves[0] >> 32);
    const auto b = static_cast<std::uint32_t>(halves[1] >> 32);
    if (a == source.flag && b == source.flag) {
      words[0] = (halves[0] & 0xffffffff) | halves[1] << 32;
      return 1;
    }
    return a >> 8 == source.flag >> 8 && a != source.flag ? 2 : 0;
  }
  template <class M>
  CHORUS_INLINE static void store(M& machine, const Wire& wire, std::uint64_t unit,
                                  const std::uint64_t* words) {
    const std::uint64_t flag = static_cast<std::uint64_t>(wire.flag) << 32;
    const std::uint64_t halves[2] = {(words[0] & 0xffffffff) | flag, words[0] >> 32 | flag};
    machine.store_words(wire.at + unit * 16, halves);
  }
};

/// Words of data in a unit.
CHORUS_INLINE std::uint32_t unit_words(Protocol protocol) {
  return protocol == Protocol::words ? 1 : 2;
}
/// Bytes of a slot that so many bytes of data take.
CHORUS_INLINE std::uint64_t wire_bytes(Protocol protocol, std::uint64_t bytes) {
  return protocol == Protocol::words ? Words::wire_bytes(bytes) : round_up(bytes, kLineBytes);
}
/// Most bytes of data that fit.
CHORUS_INLINE constexpr std::uint64_t wire_capacity(Protocol protocol, std::uint64_t slot_bytes) {
  return protocol == Protocol::words ? slot_bytes / 2 : slot_bytes;
}

// Folding ---------------------------------------------------------------------------------------

/// Loads one unit of a local source: up to `words` words, of which `bytes` bytes exist.
template <class M>
CHORUS_INLINE void load_local(M& machine, std::uint64_t from, std::uint64_t bytes,
                              std::uint32_t words, std::uint64_t* to) {
  if (words == 2 && bytes >= 16 && (from & 15) == 0) {
    machine.load_pair(from, to);
    return;
  }
  to[0] = load_word(from, bytes);
  if (words == 2) to[1] = bytes > 8 ? load_word(from + 8, bytes - 8) : 0;
}
template <class M>
CHORUS_INLINE void store_local(M& machine, std::uint64_t to, std::uint64_t bytes,
                               std::uint32_t words, const std::uint64_t* from) {
  if (words == 2 && bytes >= 16 && (to & 15) == 0) {
    machine.store_pair(to, from);
    return;
  }
  store_word(to, from[0], bytes < 8 ? bytes : 8);
  if (words == 2 && bytes > 8) store_word(to + 8, from[1], bytes - 8);
}

/// Loads a unit of `source`, waiting for it if it comes by words. False: `wait` gave up.
template <class M, class Wait>
CHORUS_NOINLINE bool load_unit(M& machine, Wait& wait, const FoldJob& job, const Source& source,
                               std::uint64_t unit, std::uint64_t* words) {
  if (source.is_wire != 0) {
    for (std::uint32_t spins = 0;; ++spins) {
      const int state = Words::load(machine, source, unit, words);
      if (state == 1) return true;
      if (state == 2 ? wait.mismatch(source.peer) : wait.gave_up(spins, source.peer)) return false;
    }
  }
  const std::uint32_t length = unit_words(job.protocol);
  const std::uint64_t offset = unit * length * 8;
  load_local(machine, source.at + offset, job.bytes - offset, length, words);
  return true;
}
template <class M>
CHORUS_NOINLINE void store_unit(M& machine, const FoldJob& job, std::uint64_t unit,
                                const std::uint64_t* words) {
  const std::uint32_t length = unit_words(job.protocol);
  const std::uint64_t offset = unit * length * 8;
  for (std::uint32_t t = 0; t < job.num_targets; ++t) {
    store_local(machine, job.targets[t] + offset, job.bytes - offset, length, words);
  }
  for (std::uint32_t w = 0; w < job.num_wires; ++w) {
    Words::store(machine, job.wires[w], unit, words);
  }
}

template <DataType kType>
CHORUS_NOINLINE void scale_unit(double factor, std::uint64_t* words) {
  words[0] = scaled_word<kType>(words[0], factor);
  words[1] = scaled_word<kType>(words[1], factor);
}

/// Any protocol, any alignment. False: gave up. kReduce: more than a copy.
template <DataType kType, ReduceOp kOp, bool kReduce, class M, class Wait>
CHORUS_NOINLINE bool fold_units(M& machine, Wait& wait, const FoldJob& job) {
  const std::uint64_t unit_bytes = unit_words(job.protocol) * 8;
  const std::uint64_t units = (job.bytes + unit_bytes - 1) / unit_bytes;
  for (std::uint64_t unit = machine.thread(); unit < units; unit += machine.threads()) {
    std::uint64_t words[2] = {0, 0};
    if (!load_unit(machine, wait, job, job.sources[0], unit, words)) return false;
    if constexpr (kReduce) {
      if (job.sources[0].is_scaled != 0) scale_unit<kType>(job.sources[0].scale, words);
      Lanes<kType> first;
      Lanes<kType> second;
      first.unpack(words[0]);
      second.unpack(words[1]);
      for (std::uint32_t s = 1; s < job.num_sources; ++s) {
        if (!load_unit(machine, wait, job, job.sources[s], unit, words)) return false;
        if (job.sources[s].is_scaled != 0) scale_unit<kType>(job.sources[s].scale, words);
        first.template combine<kOp>(words[0]);
        second.template combine<kOp>(words[1]);
      }
      if (job.divisor != 1) {
        first.divide(job.divisor);
        second.divide(job.divisor);
      }
      words[0] = first.packed();
      words[1] = second.packed();
    }
    store_unit(machine, job, unit, words);
  }
  return true;
}

/// Units that a thread has under way at a time: bytes take many instructions each.
template <DataType kType, bool kReduce>
inline constexpr int kUnroll = !kReduce                                    ? 4
                               : sizeof(typename Number<kType>::Bits) == 1 ? 1
                                                                           : 4;

/// The same where every address is a multiple of 16 and nothing comes by words: some units per
/// thread are under way at a time. Does all whole units, and fold_units() the bytes behind them.
///
/// The last round may have fewer units. A thread then loads its last one again in place of those
/// that are missing, so that all loads of a round are issued together, and stores it once.
template <DataType kType, ReduceOp kOp, bool kReduce, class M>
CHORUS_NOINLINE void fold_wide(M& machine, const FoldJob& job) {
  constexpr int kUnits = kUnroll<kType, kReduce>;
  const std::uint32_t stride = machine.threads() * 16;
  const std::uint64_t end = job.bytes / 16 * 16;
  for (std::uint64_t at = machine.thread() * 16; at < end; at += stride * kUnits) {
    const auto left = static_cast<std::uint32_t>(smaller(end - at, std::uint64_t{kUnits} * stride));
    std::uint32_t unit[kUnits];
    unit[0] = 0;
    CHORUS_UNROLL
    for (int i = 1; i < kUnits; ++i) unit[i] = i * stride < left ? i * stride : unit[i - 1];
    std::uint64_t words[kUnits][2];
    CHORUS_UNROLL
    for (int i = 0; i < kUnits; ++i) machine.load_pair(job.sources[0].at + at + unit[i], words[i]);
    if constexpr (kReduce) {
      Lanes<kType> first[kUnits];
      Lanes<kType> second[kUnits];
      CHORUS_UNROLL
      for (int i = 0; i < kUnits; ++i) {
        first[i].unpack(words[i][0]);
        second[i].unpack(words[i][1]);
      }
      for (std::uint32_t s = 1; s < job.num_sources; ++s) {
        CHORUS_UNROLL
        for (int i = 0; i < kUnits; ++i) {
          machine.load_pair(job.sources[s].at + at + unit[i], words[i]);
        }
        CHORUS_UNROLL
        for (int i = 0; i < kUnits; ++i) {
          first[i].template combine<kOp>(words[i][0]);
          second[i].template combine<kOp>(words[i][1]);
        }
      }
      CHORUS_UNROLL
      for (int i = 0; i < kUnits; ++i) {
        if (job.divisor != 1) {
          first[i].divide(job.divisor);
          second[i].divide(job.divisor);
        }
        words[i][0] = first[i].packed();
        words[i][1] = second[i].packed();
      }
    }
    for (std::uint32_t t = 0; t < job.num_targets; ++t) {
      machine.store_pair(job.targets[t] + at, words[0]);
      CHORUS_UNROLL
      for (int i = 1; i < kUnits; ++i) {
        if (unit[i] != unit[i - 1]) machine.store_pair(job.targets[t] + at + unit[i], words[i]);
      }
    }
  }
}

CHORUS_INLINE bool is_wide(const FoldJob& job) {
  std::uint64_t bits = 0;
  bool plain = true;
  for (std::uint32_t s = 0; s < job.num_sources; ++s) {
    bits |= job.sources[s].at;
    plain = plain && job.sources[s].is_scaled == 0;
  }
  for (std::uint32_t t = 0; t < job.num_targets; ++t) bits |= job.targets[t];
  return plain && (bits & 15) == 0;
}

template <DataType kType, ReduceOp kOp, bool kReduce, class M, class Wait>
CHORUS_INLINE bool fold_with(M& machine, Wait& wait, FoldJob& job) {
  if (job.protocol == Protocol::bulk && is_wide(job)) {
    fold_wide<kType, kOp, kReduce>(machine, job);
    const std::uint64_t done = job.bytes / 16 * 16;
    if (done == job.bytes) return true;
    machine.sync();  // everybody has read the job
    for (std::uint32_t i = machine.thread(); i < job.num_sources + job.num_targets;
         i += machine.threads()) {
      if (i < job.num_sources) {
        job.sources[i].at += done;
      } else {
        job.targets[i - job.num_sources] += done;
      }
    }
    if (machine.thread() == 0) job.bytes -= done;
    machine.sync();
  }
  return fold_units<kType, kOp, kReduce>(machine, wait, job);
}

/// Types whose bits add and multiply alike share the code of one.
template <DataType kType, ReduceOp kOp>
inline constexpr DataType kSameBits = (kOp == ReduceOp::sum || kOp == ReduceOp::prod)
                                          ? (kType == DataType::int8    ? DataType::uint8
                                             : kType == DataType::int16 ? DataType::uint16
                                             : kType == DataType::int32 ? DataType::uint32
                                             : kType == DataType::int64 ? DataType::uint64
                                                                        : kType)
                                          : kType;

template <DataType kType, class M, class Wait>
CHORUS_INLINE bool fold_op(M& machine, Wait& wait, FoldJob& job, ReduceOp op) {
  switch (op) {
    // NOLINTNEXTLINE(bugprone-branch-clone): who calls for an average divides
    case ReduceOp::sum:
      return fold_with<kType, ReduceOp::sum, true>(machine, wait, job);
    case ReduceOp::avg:
      return fold_with<kType, ReduceOp::sum, true>(machine, wait, job);
    case ReduceOp::prod:
      return fold_with<kSameBits<kType, ReduceOp::prod>, ReduceOp::prod, true>(machine, wait, job);
    case ReduceOp::min:
      return fold_with<kType, ReduceOp::min, true>(machine, wait, job);
    case ReduceOp::max:
      return fold_with<kType, ReduceOp::max, true>(machine, wait, job);
    case ReduceOp::band:  // DeviceCommunicator refuses these: the kernels do not have them
    case ReduceOp::bor:
    case ReduceOp::bxor:
      break;
  }
  return false;
}

/// Calls `with(std::integral_constant<DataType, …>)` for `type`: the one list of types that both
/// compilers instantiate.
template <class With>
CHORUS_INLINE bool for_type(DataType type, With&& with) {
  switch (type) {
#define CHORUS_TYPE(name) \
  case DataType::name:    \
    return with(std::integral_constant<DataType, DataType::name>());
    CHORUS_TYPE(int8)
    CHORUS_TYPE(uint8)
    CHORUS_TYPE(int16)
    CHORUS_TYPE(uint16)
    CHORUS_TYPE(int32)
    CHORUS_TYPE(uint32)
    CHORUS_TYPE(int64)
    CHORUS_TYPE(uint64)
    CHORUS_TYPE(float16)
    CHORUS_TYPE(bfloat16)
    CHORUS_TYPE(float32)
    CHORUS_TYPE(float64)
    CHORUS_TYPE(float8_e4m3)
    CHORUS_TYPE(float8_e5m2)
#undef CHORUS_TYPE
  }
  return false;
}

/// Runs the job. False: gave up while waiting. All threads of the block call it; the job may be
/// changed after a sync().
template <class M, class Wait>
CHORUS_NOINLINE bool fold(M& machine, Wait& wait, FoldJob& job, DataType type, ReduceOp op) {
  const bool copies = job.num_sources == 1 && job.divisor == 1 && job.sources[0].is_scaled == 0;
  if (copies) {
    return fold_with<DataType::uint64, ReduceOp::sum, false>(machine, wait, job);
  }
  return for_type(type, [&](auto constant) {
    return fold_op<decltype(constant)::value>(machine, wait, job, op);
  });
}

}  // namespace chorus::device
