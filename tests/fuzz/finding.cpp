#include <exception>

#include "tests/fuzz/reader.hpp"

namespace chorus::fuzz {

std::string finding(const Reader& reader, const std::string& input) {
  try {
    return reader.read(input);
  } catch (const std::exception& error) {
    return std::string("an unexpected exception: ") + error.what();
  }
}

}  // namespace chorus::fuzz
