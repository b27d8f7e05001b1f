// In place of onednn.cpp where CMake did not find the library.
#include "chorus/error.hpp"
#include "ops/onednn.hpp"

namespace trainer::onednn {

bool multiplies(Precision) { return false; }
std::string name() { return "none"; }
void multiply(Op, Op, int, int, int, float, const float*, int, const float*, int, float, float*,
              int) {
  throw chorus::Error("this build has no oneDNN to multiply with");
}
void multiply(Op, Op, int, int, int, float, const Bfloat16*, int, const Bfloat16*, int, float,
              float*, int) {
  throw chorus::Error("this build has no oneDNN to multiply with");
}

}  // namespace trainer::onednn
