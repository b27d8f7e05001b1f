#include "tests/fuzz/mutate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <utility>

namespace chorus::fuzz {
namespace {

constexpr std::size_t kMostChanges = 4;
constexpr std::size_t kMostPiece = 160;

constexpr std::string_view kNumbers[] = {"0",
                                         "1",
                                         "-1",
                                         "2",
                                         "255",
                                         "256",
                                         "32767",
                                         "65535",
                                         "65536",
                                         "2147483647",
                                         "2147483648",
                                         "-2147483648",
                                         "4294967295",
                                         "4294967296",
                                         "1e308",
                                         "1e-308",
                                         "nan",
                                         "inf",
                                         "0xffffffff",
                                         "9223372036854775807",
                                         "18446744073709551615"};

constexpr std::string_view kWords[] = {"",     " ",       "x",         "gpu0",
                                       "host", "network", "GPU0",      "NIC0",
                                       "NV4",  "SYS",     "PIX",       "ring",
                                       "/",    "\n",      "&#10;",     "\\u0000",
                                       "*",    "2*dgx1",  "torus:4x4", "hwloc:pack:2 pu:2",
                                       ":",    ",",       "=1",        "0-7",
                                       "true", "null",    "\xff",      "\xe2\x80\xae"};

/// A piece of `text`: where it begins and how long it is.
std::pair<std::size_t, std::size_t> piece_of(const std::string& text, Random& random) {
  const std::size_t at = below(random, text.size() + 1);
  return {at, std::min(below(random, kMostPiece) + 1, text.size() - at)};
}

/// Cuts, repeats or moves a piece.
void rearrange(std::string& text, Random& random) {
  const auto [at, length] = piece_of(text, random);
  const std::string piece = text.substr(at, length);
  const std::size_t action = below(random, 3);
  if (action != 1) text.erase(at, length);
  if (action != 0) text.insert(below(random, text.size() + 1), piece);
}

/// Puts another word for the one at a random place.
void change_word(std::string& text, Random& random) {
  constexpr std::string_view kBetween = " \t\n,:=*\"<>/";
  const std::size_t at = text.find_first_not_of(kBetween, below(random, text.size() + 1));
  if (at == std::string::npos) return;
  const std::size_t end = std::min(text.find_first_of(kBetween, at), text.size());
  text.replace(at, end - at, perturbed_word(text.substr(at, end - at), random));
}

void change_integer(std::string& bytes, Random& random) {
  constexpr std::size_t kSizes[] = {1, 2, 4, 8};
  const std::size_t size = kSizes[below(random, 4)];
  if (bytes.size() < size) return;
  char* at = bytes.data() + below(random, bytes.size() - size + 1);
  std::uint64_t value = 0;
  std::memcpy(&value, at, size);
  switch (below(random, 5)) {
    case 0:
      value += below(random, 9) - 4;
      break;
    case 1:
      value = below(random, 16);
      break;
    case 2:
      value = ~std::uint64_t{0} >> below(random, 64);
      break;
    case 3:
      value = std::uint64_t{1} << below(random, 64);
      break;
    default:
      value ^= std::uint64_t{1} << below(random, 8 * size);
  }
  std::memcpy(at, &value, size);
}

}  // namespace

std::string perturbed_number(std::string_view text, Random& random) {
  std::int64_t value = 0;
  const bool whole = std::from_chars(text.data(), text.data() + text.size(), value).ptr ==
                     text.data() + text.size();
  if (!whole || below(random, 2) == 0) {
    return std::string(kNumbers[below(random, std::size(kNumbers))]);
  }
  const auto sum =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(value) + below(random, 9) - 4);
  return fmt::format("{}", below(random, 4) == 0 ? value / 2 : sum);
}

std::string perturbed_word(std::string_view text, Random& random) {
  const std::size_t action = below(random, 6);
  if (action == 0) return std::string(kWords[below(random, std::size(kWords))]);
  // The number in it: "gpu3", "0000:3b:00.0", "16.0 GT/s PCIe".
  const std::size_t at = text.find_first_of("0123456789", below(random, text.size() + 1));
  if (action == 1 || at == std::string_view::npos) return perturbed_number(text, random);
  const std::size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
  std::string word(text);
  return word.replace(at, end - at, perturbed_number(text.substr(at, end - at), random));
}

std::string mutated_text(std::string text, Random& random) {
  for (std::size_t changes = 1 + below(random, kMostChanges); changes > 0; --changes) {
    switch (below(random, 4)) {
      case 0:
        rearrange(text, random);
        break;
      case 1:
        text.insert(below(random, text.size() + 1), kWords[below(random, std::size(kWords))]);
        break;
      default:
        change_word(text, random);
    }
  }
  return text;
}

std::string mutated_bytes(std::string bytes, Random& random) {
  for (std::size_t changes = 1 + below(random, kMostChanges); changes > 0; --changes) {
    switch (below(random, 4)) {
      case 0:
        rearrange(bytes, random);
        break;
      case 1:
        bytes.insert(below(random, bytes.size() + 1), 1, static_cast<char>(below(random, 256)));
        break;
      default:
        change_integer(bytes, random);
    }
  }
  return bytes;
}

std::string mutated(const Reader& reader, const std::string& input, Random& random) {
  std::string result;
  switch (reader.grammar) {
    case Grammar::xml:
      result = mutated_xml(input, random);
      break;
    case Grammar::json:
      result = mutated_json(input, random);
      break;
    case Grammar::text:
      break;
    case Grammar::bytes:
      result = mutated_bytes(input, random);
      break;
  }
  if (result.empty()) result = mutated_text(input, random);
  return reader.repair == nullptr ? result : reader.repair(std::move(result));
}

}  // namespace chorus::fuzz
