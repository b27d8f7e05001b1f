#include "reference.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "chorus/memory.hpp"
#include "collectives/reduce.hpp"
#include "runtime/engine/flight_recorder.hpp"

namespace chorus::testing {
namespace {

constexpr std::byte kGuard{0xa5};
constexpr std::size_t kGuardBytes = 64;

void store(DataType type, std::byte* at, int value) {
  const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof typed); };
  const auto real = static_cast<float>(value);
  switch (type) {
    case DataType::int8:
      return put(static_cast<std::int8_t>(value));
    case DataType::uint8:
      return put(static_cast<std::uint8_t>(value));
    case DataType::int16:
      return put(static_cast<std::int16_t>(value));
    case DataType::uint16:
      return put(static_cast<std::uint16_t>(value));
    case DataType::int32:
      return put(static_cast<std::int32_t>(value));
    case DataType::uint32:
      return put(static_cast<std::uint32_t>(value));
    case DataType::int64:
      return put(static_cast<std::int64_t>(value));
    case DataType::uint64:
      return put(static_cast<std::uint64_t>(value));
    case DataType::float16:
      return put(Float16(real));
    case DataType::bfloat16:
      return put(BFloat16(real));
    case DataType::float32:
      return put(real);
    case DataType::float64:
      return put(static_cast<double>(value));
    case DataType::float8_e4m3:
      return put(Float8E4M3(real));
    case DataType::float8_e5m2:
      return put(Float8E5M2(real));
  }
}

// Small enough that no partial sum or product of up to 16 ranks is rounded, even in 8 bits.
int value_of(ReduceOp op, Rank rank, std::size_t i) {
  const std::size_t mixed = (static_cast<std::size_t>(rank) + 1) * 2654435761U + i * 40503U;
  if (op == ReduceOp::prod) return rank < 3 && mixed / 64 % 2 == 0 ? 2 : 1;
  if (op == ReduceOp::sum || op == ReduceOp::avg) return static_cast<int>(mixed / 64 % 2);
  return static_cast<int>(mixed / 64 % 8);
}

Bytes input_of(const Case& test, Rank rank, std::size_t elements) {
  Bytes data(elements * size_of(test.type));
  for (std::size_t i = 0; i < elements; ++i) {
    store(test.type, data.data() + i * size_of(test.type), value_of(test.op, rank, i));
  }
  return data;
}

struct Shape {
  std::size_t in_blocks = 0;
  std::size_t out_blocks = 0;
};

Shape shape_of(const Case& test, Rank rank, std::size_t n) {
  const bool root = rank == test.root;
  switch (test.kind) {
    case Call::Kind::all_reduce:
      return {1, 1};
    case Call::Kind::all_gather:
      return {1, n};
    case Call::Kind::reduce_scatter:
      return {n, 1};
    case Call::Kind::all_to_all:
      return {n, n};
    case Call::Kind::broadcast:
      return {root ? 1U : 0U, 1};
    case Call::Kind::reduce:
      return {1, root ? 1U : 0U};
    case Call::Kind::gather:
      return {1, root ? n : 0U};
    case Call::Kind::scatter:
      return {root ? n : 0U, 1};
    default:
      return {0, 0};
  }
}

// What `rank` must hold afterwards.
Bytes expected_of(const Case& test, Rank rank, std::size_t n) {
  const std::size_t block = test.count * size_of(test.type);
  const auto me = static_cast<std::size_t>(rank);
  const auto part = [&](Rank from, std::size_t index) {
    const std::size_t blocks = shape_of(test, from, n).in_blocks;
    const Bytes all = input_of(test, from, blocks * test.count);
    return Bytes(all.begin() + static_cast<std::ptrdiff_t>(index * block),
                 all.begin() + static_cast<std::ptrdiff_t>((index + 1) * block));
  };
  const auto reduction = [&](std::size_t index) {
    std::vector<Bytes> inputs;
    std::vector<const void*> pointers;
    for (std::size_t r = 0; r < n; ++r) inputs.push_back(part(static_cast<Rank>(r), index));
    for (const Bytes& input : inputs) pointers.push_back(input.data());
    Bytes out(block);
    fold_reference(out.data(), pointers, test.count, test.type, test.op,
                   test.op == ReduceOp::avg ? static_cast<int>(n) : 1);
    return out;
  };
  Bytes expected;
  const auto append = [&](const Bytes& data) {
    expected.insert(expected.end(), data.begin(), data.end());
  };
  switch (test.kind) {
    case Call::Kind::all_reduce:
      append(reduction(0));
      break;
    case Call::Kind::reduce:
      if (rank == test.root) append(reduction(0));
      break;
    case Call::Kind::reduce_scatter:
      append(reduction(me));
      break;
    case Call::Kind::broadcast:
      append(part(test.root, 0));
      break;
    case Call::Kind::scatter:
      append(part(test.root, me));
      break;
    case Call::Kind::gather:
      if (rank != test.root) break;
      [[fallthrough]];
    case Call::Kind::all_gather:
      for (std::size_t r = 0; r < n; ++r) append(part(static_cast<Rank>(r), 0));
      break;
    case Call::Kind::all_to_all:
      for (std::size_t r = 0; r < n; ++r) append(part(static_cast<Rank>(r), me));
      break;
    default:
      break;
  }
  return expected;
}

}  // namespace

std::string Case::name() const {
  return fmt::format("{}{} {} {} × {} root {} misaligned by {}", chorus::name_of(kind),
                     in_place ? " in place" : "", name_of(op), count, name_of(type), root,
                     misalignment);
}

void run_case(Communicator& comm, const Case& test) {
  run_case(comm.rank(), static_cast<std::size_t>(comm.world_size()), test,
           [&](const Call& call) { comm.start(call).wait(); });
}

void run_case(Rank me, std::size_t n, const Case& test,
              const std::function<void(const Call&)>& run) {
  const Trial trial(me, n, test);
  run(trial.call());
  trial.check();
}

void Trial::Release::operator()(std::byte* memory) const {
  if (shared) {
    deallocate(memory);
  } else {
    delete[] memory;
  }
}

Trial::Memory Trial::allocate(std::size_t bytes) const {
  auto* const memory =
      test_.shared ? static_cast<std::byte*>(chorus::allocate(bytes)) : new std::byte[bytes];
  std::fill_n(memory, bytes, kGuard);
  return {memory, Release{test_.shared}};
}

Trial::Trial(Rank me, std::size_t n, const Case& test) : me_(me), n_(n), test_(test) {
  const std::size_t block = test.count * size_of(test.type);
  const Shape shape = shape_of(test, me, n);
  input_ = input_of(test, me, shape.in_blocks * test.count);
  expected_ = expected_of(test, me, n);

  in_ = allocate(input_.size() + kGuardBytes + test.misalignment);
  std::byte* const in = in_.get() + test.misalignment;
  std::copy(input_.begin(), input_.end(), in);
  out_bytes_ = std::max(expected_.size(), input_.size()) + 2 * kGuardBytes + test.misalignment;
  out_ = allocate(out_bytes_);
  std::byte* const out = out_.get() + kGuardBytes + test.misalignment;
  result_ = out;

  call_ = {.kind = test.kind,
           .input = in,
           .output = out,
           .count = test.count,
           .type = test.type,
           .reduction = test.op,
           .peer = test.root};
  if (!test.in_place || shape.in_blocks == 0) return;
  // The input lies where the collective's in-place form has it: see include/chorus.
  const std::size_t own = static_cast<std::size_t>(me) * block;
  if (test.kind == Call::Kind::all_gather || test.kind == Call::Kind::gather) {
    if (shape.out_blocks > 1) {
      std::copy(input_.begin(), input_.end(), out + own);
      call_.input = out + own;
    }
    return;
  }
  std::copy(input_.begin(), input_.end(), out);
  call_.input = out;
  if (shape.in_blocks > shape.out_blocks && shape.out_blocks == 1) result_ = out + own;
  call_.output = result_;
}

void Trial::check() const {
  if (!std::equal(expected_.begin(), expected_.end(), result_)) {
    std::size_t i = 0;
    while (result_[i] == expected_[i]) ++i;
    throw std::runtime_error(fmt::format("{}: rank {} of {}: wrong at element {} of {}",
                                         test_.name(), me_, n_, i / size_of(test_.type),
                                         expected_.size() / size_of(test_.type)));
  }
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (out_[i + test_.misalignment] != kGuard || out_[out_bytes_ - 1 - i] != kGuard) {
      throw std::runtime_error(test_.name() + ": wrote outside the output");
    }
  }
  if (!test_.in_place && test_.kind != Call::Kind::broadcast &&
      !std::equal(input_.begin(), input_.end(), in_.get() + test_.misalignment)) {
    throw std::runtime_error(test_.name() + ": changed its input");
  }
}

}  // namespace chorus::testing
