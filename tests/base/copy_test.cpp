// copy_bytes(): the same bytes as std::memcpy(), wherever they lie, and none beside them.
#include "base/copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

namespace chorus {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::byte kUntouched{0xEE};

/// Memory of `bytes` whose offset in a page is `offset`.
class Placed {
 public:
  Placed(std::size_t bytes, std::size_t offset)
      : memory_(bytes + 3 * kPage, kUntouched), bytes_(bytes) {
    void* at = memory_.data() + kPage;
    std::size_t space = memory_.size() - kPage;
    begin_ = static_cast<std::byte*>(std::align(kPage, bytes + kPage, at, space)) + offset;
  }
  [[nodiscard]] std::span<std::byte> bytes() { return {begin_, bytes_}; }
  [[nodiscard]] bool is_untouched_beside() const {
    const auto untouched = [](std::byte value) { return value == kUntouched; };
    const std::byte* const end = begin_ + bytes_;
    return std::all_of(memory_.data(), static_cast<const std::byte*>(begin_), untouched) &&
           std::all_of(end, memory_.data() + memory_.size(), untouched);
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_;
  std::byte* begin_;
};

TEST(Copy, IsTheSameWhereverTheBytesLie) {
  for (const std::size_t size : {0, 1, 255, 256, 2048, 2049, 2304, 4096, 5000, 131072, 1048577}) {
    for (const std::size_t from_offset : {0, 16, 4080}) {
      for (const std::size_t behind : {0, 1, 16, 63, 64, 4095}) {
        Placed from(size, from_offset), to(size, (from_offset + behind) % kPage);
        for (std::size_t i = 0; i < size; ++i) from.bytes()[i] = static_cast<std::byte>(i * 7 + 1);
        copy_bytes(to.bytes().data(), from.bytes().data(), size);
        EXPECT_TRUE(std::ranges::equal(from.bytes(), to.bytes())) << size << " " << behind;
        EXPECT_TRUE(to.is_untouched_beside()) << size << " " << behind;
      }
    }
  }
}

TEST(Copy, KnowsWhatBeginsJustBehindPagesAside) {
  Placed memory(3 * kPage, 0);
  const std::byte* const at = memory.bytes().data();
  EXPECT_FALSE(chases(at, at));
  EXPECT_TRUE(chases(at + 1, at));
  EXPECT_TRUE(chases(at + kPage + 16, at));
  EXPECT_TRUE(chases(at + 16, at + kPage));
  EXPECT_FALSE(chases(at + 64, at));
  EXPECT_FALSE(chases(at, at + 16));
}

}  // namespace
}  // namespace chorus
