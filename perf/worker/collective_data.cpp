#include "perf/worker/collective_data.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>

#include "chorus/error.hpp"

namespace chorus::perf {

HostMemory::HostMemory(std::size_t bytes, int offset_bytes, Backend* library) {
  if (bytes == 0) return;
  if (library != nullptr) data_ = library->allocate(bytes);
  if (data_ != nullptr) {
    library_ = library;
    bytes_ = bytes;
    return;
  }
  const auto offset = static_cast<std::size_t>(offset_bytes);
  void* memory =
      ::mmap(nullptr, offset + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(fmt::format("no memory for a buffer of {} bytes; measure smaller sizes", bytes));
  }
  data_ = static_cast<std::byte*>(memory) + offset;
  bytes_ = bytes;
  offset_bytes_ = offset;
}

HostMemory::~HostMemory() {
  if (library_ != nullptr) {
    library_->deallocate(data_);
  } else if (data_ != nullptr) {
    ::munmap(data_ - offset_bytes_, offset_bytes_ + bytes_);
  }
}

std::size_t input_count(const Operation& operation, int rank, int world_size) {
  const bool root = rank == operation.root;
  const auto n = static_cast<std::size_t>(world_size);
  switch (operation.kind) {
    case Kind::reduce_scatter:
    case Kind::all_to_all:
      return operation.count * n;
    case Kind::scatter:
      return root ? operation.count * n : 0;
    case Kind::broadcast:
    case Kind::barrier:
      return 0;
    default:
      return operation.count;
  }
}

std::size_t output_count(const Operation& operation, int rank, int world_size) {
  const bool root = rank == operation.root;
  const auto n = static_cast<std::size_t>(world_size);
  switch (operation.kind) {
    case Kind::all_gather:
    case Kind::all_to_all:
      return operation.count * n;
    case Kind::gather:
      return root ? operation.count * n : 0;
    case Kind::reduce:
      return root ? operation.count : 0;
    case Kind::barrier:
      return 0;
    default:
      return operation.count;
  }
}

CollectiveData::CollectiveData(const Job& job, int rank, int world_size, Backend* library)
    : job_(job), rank_(rank), n_(world_size), element_(size_of(job.type)) {
  operation_ = {
      .kind = job.kind, .type = job.type, .op = job.op, .root = job.root, .count = job.count};
  const std::size_t in = input_count() * element_;
  const std::size_t out = output_count() * element_;
  const std::size_t own = static_cast<std::size_t>(rank) * job.count * element_;
  if (!job.in_place || in == 0 || out == 0) {
    in_ = HostMemory(in, job.offset_bytes, library);
    out_ = HostMemory(out, job.offset_bytes, library);
    operation_.input = in_.data();
    operation_.output = out_.data();
  } else if (in >= out) {  // the output is the input, or one block of it
    in_ = HostMemory(in, job.offset_bytes, library);
    operation_.input = in_.data();
    operation_.output = in == out ? in_.data() : in_.data() + own;
  } else {  // the input is one block of the output
    out_ = HostMemory(out, job.offset_bytes, library);
    operation_.input = out_.data() + own;
    operation_.output = out_.data();
  }
  if (job.kind == Kind::broadcast) operation_.input = operation_.output;
}

Pattern CollectiveData::pattern(std::uint32_t seed) const {
  return {.type = job_.type,
          .op = job_.op,
          .reduced = benchmark(job_.kind).reduces,
          .world_size = n_,
          .seed = seed};
}

void CollectiveData::fill_input(std::uint32_t seed) {
  if (job_.kind == Kind::broadcast) {
    if (rank_ == job_.root) fill(operation_.output, pattern(seed), rank_, 0, job_.count);
    return;
  }
  // Input pointers are const for the backends; the memory is ours.
  fill(const_cast<void*>(operation_.input), pattern(seed), rank_, 0, input_count());
}

void CollectiveData::poison_output() {
  if (job_.kind == Kind::broadcast && rank_ == job_.root) return;
  auto* out = static_cast<std::byte*>(operation_.output);
  const std::size_t bytes = output_count() * element_;
  const auto* in = static_cast<const std::byte*>(operation_.input);
  const std::size_t in_bytes = input_count() * element_;
  if (in == nullptr || in >= out + bytes || in + in_bytes <= out || job_.kind == Kind::broadcast) {
    poison(out, bytes);
    return;
  }
  if (in_bytes >= bytes) return;  // the whole output is input
  poison(out, static_cast<std::size_t>(in - out));
  poison(out + (in - out) + in_bytes, bytes - static_cast<std::size_t>(in - out) - in_bytes);
}

bool CollectiveData::keeps_input() const {
  const bool destroys = job_.kind == Kind::all_reduce || job_.kind == Kind::reduce ||
                        job_.kind == Kind::reduce_scatter || job_.kind == Kind::all_to_all;
  return !(job_.in_place && destroys);
}

void CollectiveData::check_part(std::size_t at, Mismatches found, std::string_view from,
                                Sample& sample) const {
  if (found.wrong != 0 && sample.wrong == 0) {
    sample.first_wrong =
        fmt::format("rank {}: element {} is not {}", rank_, at + found.first_wrong, from);
  }
  sample.wrong += found.wrong;
}

void CollectiveData::check_output(std::uint32_t seed, Sample& sample) const {
  const Pattern p = pattern(seed);
  const auto* out = static_cast<const std::byte*>(operation_.output);
  const std::size_t count = job_.count;
  const std::size_t mine = static_cast<std::size_t>(rank_) * count;
  const auto block_from = [&](int b, std::size_t first) {
    const std::size_t at = static_cast<std::size_t>(b) * count;
    check_part(at, compare_to_rank(out + at * element_, p, b, first, count),
               fmt::format("what rank {} sent", b), sample);
  };
  switch (job_.kind) {
    case Kind::all_reduce:
      return check_part(0, compare_to_reduction(out, p, 0, count), "the reduction", sample);
    case Kind::reduce_scatter:
      return check_part(0, compare_to_reduction(out, p, mine, count), "the reduction", sample);
    case Kind::reduce:
      if (rank_ != job_.root) return;
      return check_part(0, compare_to_reduction(out, p, 0, count), "the reduction", sample);
    case Kind::broadcast:
      return check_part(0, compare_to_rank(out, p, job_.root, 0, count), "the root's", sample);
    case Kind::scatter:
      return check_part(0, compare_to_rank(out, p, job_.root, mine, count), "the root's", sample);
    case Kind::gather:
      if (rank_ != job_.root) return;
      for (int b = 0; b < n_; ++b) block_from(b, 0);
      return;
    case Kind::all_gather:
      for (int b = 0; b < n_; ++b) block_from(b, 0);
      return;
    case Kind::all_to_all:
      for (int b = 0; b < n_; ++b) block_from(b, mine);
      return;
    default:
      return;  // a barrier has no data
  }
}

}  // namespace chorus::perf
