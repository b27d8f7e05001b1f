// Every reader of bytes from outside, in one form, so that one fuzzer and one test run them all.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace chorus::fuzz {

/// Which mutator knows the structure of a reader's input.
enum class Grammar { xml, json, text, bytes };

struct Reader {
  std::string_view name;
  Grammar grammar = Grammar::bytes;
  /// Reads `input` and uses what came of it as the commands do. An input may be refused; the
  /// return value says in which way the reader broke its promises, and is empty if it kept them.
  /// Exceptions other than those that the reader promises leave it.
  std::string (*read)(const std::string& input) = nullptr;
  /// Valid inputs, of every dialect.
  std::vector<std::string> (*samples)() = nullptr;
  /// Mends what would stop a mutated input at the door, a checksum, say; or null.
  std::string (*repair)(std::string input) = nullptr;
};

/// All readers of the program.
[[nodiscard]] std::span<const Reader> readers();

/// `reader.read(input)`, with an unexpected exception as a finding, too.
[[nodiscard]] std::string finding(const Reader& reader, const std::string& input);

}  // namespace chorus::fuzz
