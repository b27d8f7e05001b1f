// Builds for a torch without CUDA, or without CUDA's headers.
#include "accelerator.hpp"

namespace chorus_torch {

const Accelerator* accelerator() { return nullptr; }

std::string why_no_accelerator() {
  return "this chorus_torch was built without CUDA: build it again for a torch that has CUDA, "
         "where cuda_runtime_api.h is (docs/pytorch.md)";
}

}  // namespace chorus_torch
