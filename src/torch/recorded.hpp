// What torch's profilers are shown of a call.
#pragma once

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace chorus_torch {

/// The group of a call.
struct Identity {
  std::string backend;  ///< in events: "chorus", or "gloo" where Chorus stands in for it
  std::string name;
  std::vector<std::uint64_t> global_ranks;  ///< of the group's ranks; empty: they are the same
  std::string address;                      ///< where other hosts reach this rank
};

/// What a call works on, noted only while somebody profiles.
struct Shown {
  std::string title;       ///< "all_reduce", of the event "BACKEND:all_reduce"
  std::string collective;  ///< what traces of torch call it: "allreduce"
  std::vector<at::Tensor> inputs, outputs;
  std::vector<std::int64_t> input_splits, output_splits;
};

/// True while a profiler or an observer of this thread wants to know of calls.
[[nodiscard]] bool somebody_profiles();

/// Runs `begin` within an operator "record_param_comms" that has name, sizes, type and group of the
/// call, which Kineto, HTA and Chakra read.
void record_param_comms(const Shown& shown, const Identity& group, int rank, int world_size,
                        std::int64_t sequence, bool message, const std::function<void()>& begin);

/// Begins the event "chorus:TITLE", with the shapes of the inputs. What is returned ends it, on any
/// thread; empty where nobody profiles.
[[nodiscard]] std::function<void()> begin_event(const Shown& shown, const Identity& group);

}  // namespace chorus_torch
