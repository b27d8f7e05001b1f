#include "formats/msccl_memory.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "chorus/error.hpp"
#include "model/schedule/contract.hpp"

namespace chorus::formats {
namespace {

/// Largest input (output) any rank has.
int most(const Schedule& outline, int (*blocks)(Collective, int, Rank)) {
  const int n = outline.world_size;
  const Rank root = outline.collective.root;
  const int other = n > 1 ? blocks(outline.collective, n, (root + 1) % n) : 0;
  return std::max(blocks(outline.collective, n, root), other);
}

bool ordered(LocalStep before, LocalStep by, const Clock& clock, int first_block) {
  return before.block < 0 || before.block == by.block ||
         clock[first_block + before.block] > before.step;
}

}  // namespace

MscclMemory::MscclMemory(const MscclGpu& gpu, const Schedule& outline, Rank rank, bool in_place,
                         std::string_view where) {
  const CollectiveKind kind = outline.collective.kind;
  const int n = outline.world_size;
  const int k = outline.num_chunks / num_blocks(kind, n);
  inputs_ = input_blocks(outline.collective, n, rank) * k;
  outputs_ = output_blocks(outline.collective, n, rank) * k;
  const int most_inputs = most(outline, input_blocks) * k;
  const int most_outputs = most(outline, output_blocks) * k;
  if (gpu.input_chunks > most_inputs || gpu.output_chunks > most_outputs) {
    throw InputError(fmt::format(
        "{}:{}: <gpu> has i_chunks=\"{}\" and o_chunks=\"{}\", but {} in {} ranks has {} and {} "
        "by nchunksperloop",
        where, gpu.line, gpu.input_chunks, gpu.output_chunks, name_of(kind), n, most_inputs,
        most_outputs));
  }
  input_base_ = gpu.scratch_chunks;
  output_base_ = gpu.scratch_chunks + most_inputs;
  if (in_place) {
    const bool gathers = kind == CollectiveKind::all_gather || kind == CollectiveKind::gather;
    const bool scatters = kind == CollectiveKind::reduce_scatter || kind == CollectiveKind::scatter;
    output_base_ = gpu.scratch_chunks + (scatters ? rank * k : 0);
    input_base_ = gpu.scratch_chunks + (gathers ? rank * k : 0);
  }
  const int size = std::max(input_base_ + most_inputs, output_base_ + most_outputs);
  values_.assign(size, -1);
  accesses_.resize(size);
}

int MscclMemory::place(LocalRange range) const {
  switch (range.buffer) {
    case Buffer::input:
      return input_base_ + range.index;
    case Buffer::output:
      return output_base_ + range.index;
    case Buffer::scratch:
      break;
  }
  return range.index;
}

std::optional<LocalStep> MscclMemory::read(int place, LocalStep by, const Clock& clock,
                                           int first_block) {
  Access& access = accesses_[place];
  if (!ordered(access.writer, by, clock, first_block)) return access.writer;
  const auto same = std::find_if(access.readers.begin(), access.readers.end(),
                                 [&](const LocalStep& r) { return r.block == by.block; });
  if (same != access.readers.end()) {
    *same = by;
  } else {
    access.readers.push_back(by);
  }
  return std::nullopt;
}

std::optional<LocalStep> MscclMemory::write(int place, int value, LocalStep by, const Clock& clock,
                                            int first_block) {
  Access& access = accesses_[place];
  if (!ordered(access.writer, by, clock, first_block)) return access.writer;
  for (const LocalStep& reader : access.readers) {
    if (!ordered(reader, by, clock, first_block)) return reader;
  }
  access.readers.clear();
  access.writer = by;
  values_[place] = value;
  return std::nullopt;
}

}  // namespace chorus::formats
