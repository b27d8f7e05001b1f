#include "recorded.hpp"

#include <ATen/ThreadLocalState.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/api/include/torch/version.h>

#include <string_view>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace chorus_torch {
namespace {

using Info = torch::ParamCommsDebugInfo;
using Splits = std::vector<std::int64_t>;

std::int64_t elements(const std::vector<at::Tensor>& tensors) {
  std::int64_t sum = 0;
  for (const at::Tensor& tensor : tensors) sum += tensor.numel();
  return sum;
}

at::ScalarType type_of(const Shown& shown) {
  if (!shown.inputs.empty()) return shown.inputs.front().scalar_type();
  return shown.outputs.empty() ? at::kByte : shown.outputs.front().scalar_type();
}

/// The ranks of the group as "from here on, so far apart"; -1, 0 where they are not, or not known.
std::pair<int, int> range_of(const std::vector<std::uint64_t>& ranks) {
  if (ranks.empty()) return {-1, 0};
  const auto stride = ranks.size() == 1 ? 1 : static_cast<int>(ranks[1] - ranks[0]);
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    if (static_cast<int>(ranks[i] - ranks[i - 1]) != stride) return {-1, 0};
  }
  return {static_cast<int>(ranks[0]), stride};
}

using PgName = std::tuple<std::string, std::string>;

/// As this version of torch makes it; null where it is a version that nobody has looked at.
template <class T = Info>
std::shared_ptr<T> info_of(const Shown& shown, const Identity& group, int rank, int world_size) {
  const auto [first, stride] = range_of(group.global_ranks);
  const std::int64_t in = elements(shown.inputs);
  const std::int64_t out = elements(shown.outputs);
  std::string name = shown.collective;
  if constexpr (std::is_constructible_v<T, PgName, int, std::string, std::int64_t, std::int64_t,
                                        at::ScalarType, Splits, Splits, int, int, int>) {
    return std::make_shared<T>(PgName(group.name, "undefined"), rank, std::move(name), in, out,
                               type_of(shown), shown.input_splits, shown.output_splits, first,
                               stride, world_size);
  } else if constexpr (std::is_constructible_v<T, int, std::string, int, int, at::ScalarType,
                                               Splits, Splits>) {
    return std::make_shared<T>(rank, std::move(name), static_cast<int>(in), static_cast<int>(out),
                               type_of(shown), shown.input_splits, shown.output_splits);
  } else {
    return nullptr;
  }
}

template <class T>
void set_sequence(T& info, std::int64_t sequence, bool message) {
  if constexpr (requires { info.setSequenceInfo(sequence, message); }) {
    info.setSequenceInfo(sequence, message);
  }
}

const std::string& operator_name() {
#if TORCH_VERSION_MAJOR >= 2
  return at::kParamCommsCallName;
#else
  return torch::kParamCommsCallName;
#endif
}

}  // namespace

bool somebody_profiles() {
  return at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value() ||
         at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE).has_value();
}

void record_param_comms(const Shown& shown, const Identity& group, int rank, int world_size,
                        std::int64_t sequence, bool message, const std::function<void()>& begin) {
  const auto info = info_of(shown, group, rank, world_size);
  if (!info) return begin();
  set_sequence(*info, sequence, message);
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PARAM_COMMS_INFO, info);
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) {
    // In the order in which those who read traces expect them.
    const auto [first, stride] = range_of(group.global_ranks);
    const std::vector<c10::IValue> inputs = {
        shown.inputs,
        std::make_tuple(sequence, message),
        std::make_tuple(group.name, std::string("undefined")),
        rank,
        shown.collective,
        shown.input_splits,
        shown.output_splits,
        first,
        stride,
        world_size,
        true,
    };
    record.before(operator_name(), &inputs);
    record.setOutputs(std::vector<c10::IValue>{c10::IValue(shown.outputs)});
  }
  begin();
}

std::function<void()> begin_event(const Shown& shown, const Identity& group) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
  if (!callbacks) return {};
  const auto record = std::make_shared<at::RecordFunction>(std::move(*callbacks));
  record->_setAsync();  // it may end on another thread
  const std::vector<c10::IValue> inputs(shown.inputs.begin(), shown.inputs.end());
  record->before(group.backend + ":" + shown.title, &inputs);
  return at::wrapPropagateTLSState([record] { record->end(); });
}

}  // namespace chorus_torch
