// What only torch knows of its GPUs: all that the backend asks of torch's CUDA.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>

namespace chorus_torch {

class Accelerator {
 public:
  virtual ~Accelerator() = default;

  /// True where the tensor's memory is a GPU's.
  [[nodiscard]] virtual bool holds(const at::Tensor& tensor) const = 0;
  /// Its ordinal, of such a tensor.
  [[nodiscard]] virtual int gpu_of(const at::Tensor& tensor) const = 0;
  /// The calling thread's current stream on that GPU (a cudaStream_t).
  [[nodiscard]] virtual void* current_stream(int gpu) const = 0;
  /// A stream to communicate on, valid to the end of the process.
  [[nodiscard]] virtual void* new_stream(int gpu) const = 0;
  /// [count], uninitialized, of the type and on the GPU of `like`; for the current stream.
  [[nodiscard]] virtual at::Tensor empty(int64_t count, const at::Tensor& like) const = 0;
  /// What is in `stream` by the time the tensor is let go still uses its memory.
  virtual void use(const at::Tensor& tensor, int gpu, void* stream) const = 0;
  /// A complete future: whoever takes its value goes on after what is in `stream` by now.
  [[nodiscard]] virtual c10::intrusive_ptr<c10::ivalue::Future> future(const c10::IValue& result,
                                                                       const c10::TypePtr& type,
                                                                       int gpu,
                                                                       void* stream) const = 0;
};

/// Null in a build without CUDA, and why_no_accelerator() says what it would need.
[[nodiscard]] const Accelerator* accelerator();
[[nodiscard]] std::string why_no_accelerator();

}  // namespace chorus_torch
