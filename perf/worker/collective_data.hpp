// The buffers of one collective on one rank: their shapes, contents and right results.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "perf/job.hpp"
#include "perf/report/data.hpp"
#include "perf/worker/backend.hpp"

namespace chorus::perf {

/// Host memory, given back to the system when it goes.
class HostMemory {
 public:
  HostMemory() = default;
  /// Begins `offset_bytes`, less than a page, behind one, unless `library` gives it. Throws
  /// chorus::Error naming the size if there is no such memory.
  explicit HostMemory(std::size_t bytes, int offset_bytes = 0, Backend* library = nullptr);
  HostMemory(HostMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)),
        offset_bytes_(std::exchange(other.offset_bytes_, 0)),
        library_(std::exchange(other.library_, nullptr)) {}
  HostMemory& operator=(HostMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(offset_bytes_, other.offset_bytes_);
    std::swap(library_, other.library_);
    return *this;
  }
  ~HostMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  std::size_t offset_bytes_ = 0;
  Backend* library_ = nullptr;  // that gave the memory, or null
};

/// Elements of `rank`'s buffers of an operation among `world_size` ranks; 0 where it has none.
[[nodiscard]] std::size_t input_count(const Operation& operation, int rank, int world_size);
[[nodiscard]] std::size_t output_count(const Operation& operation, int rank, int world_size);

/// Input and output of one collective, laid out as Operation says.
class CollectiveData {
 public:
  /// `library` may give the memory.
  CollectiveData(const Job& job, int rank, int world_size, Backend* library = nullptr);

  [[nodiscard]] const Operation& operation() const { return operation_; }

  /// Writes the input that `seed` gives.
  void fill_input(std::uint32_t seed);
  /// Overwrites what the operation must write. In place only what is no input.
  void poison_output();
  /// Adds the elements that are not the result for `seed` to sample.
  void check_output(std::uint32_t seed, Sample& sample) const;
  /// Whether the operation leaves its input as it was, so that it can be repeated and checked
  /// without refilling.
  [[nodiscard]] bool keeps_input() const;

 private:
  [[nodiscard]] Pattern pattern(std::uint32_t seed) const;
  [[nodiscard]] std::size_t input_count() const { return perf::input_count(operation_, rank_, n_); }
  [[nodiscard]] std::size_t output_count() const {
    return perf::output_count(operation_, rank_, n_);
  }
  /// Adds what comparing the part of the output from element `at` found.
  void check_part(std::size_t at, Mismatches found, std::string_view from, Sample& sample) const;

  Job job_;
  int rank_;
  int n_;
  std::size_t element_;
  HostMemory in_, out_;
  Operation operation_;
};

}  // namespace chorus::perf
