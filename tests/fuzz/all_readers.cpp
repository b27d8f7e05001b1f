#include "tests/fuzz/all_readers.hpp"

namespace chorus::fuzz {

std::span<const Reader> readers() {
  static const std::vector<Reader> kAll = [] {
    std::vector<Reader> all;
    for (const auto& some :
         {topology_readers(), schedule_readers(), record_readers(), wire_readers()}) {
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  }();
  return kAll;
}

}  // namespace chorus::fuzz
