// Reads the text of a module; used once per module.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "module.hpp"

namespace ptx {

class Parser {
 public:
  Parser(Module& module, std::string_view text);
  void run();

 private:
  [[noreturn]] void fail(const std::string& why) const;
  void skip_blank();
  std::string_view take_line();
  void section();
  void declaration();
  static std::pair<std::string, std::uint64_t> variable(std::string_view text);
  void begin_function(std::string_view head, bool entry);
  void body();
  void location(std::string_view text);
  void declare(std::string_view text);
  void link();
  void name_files(std::string& site) const;

  std::uint32_t register_of(const std::string& name);
  [[nodiscard]] bool is_predicate(const std::string& name) const;
  Value value(std::string_view text, bool predicate = false);

  // One instruction: instruction.cpp.
  void instruction(std::string_view text, std::uint32_t line);
  void append(Instruction one);
  void operands(Instruction& one, std::string_view name,
                const std::vector<std::string_view>& given);
  void memory(Instruction& one, const std::vector<std::string_view>& given);
  void parameter(Instruction& one, const std::vector<std::string_view>& given);
  void address(Instruction& one, std::string_view text);
  void move(Instruction& one, const std::vector<std::string_view>& given);
  void call(Instruction& one, std::string_view text);

  Module& module_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  std::map<std::uint64_t, std::string> files_;
  std::string site_;
  std::map<std::uint32_t, std::string> callees_;    ///< by line
  std::map<std::uint32_t, std::string> tables_of_;  ///< of brx, by line

  // Of the function under way.
  Function* function_ = nullptr;
  std::map<std::string, std::uint32_t> registers_, predicates_, labels_;
  std::map<std::string, bool> declared_;  ///< names without a number: is it a predicate?
  std::string predicate_prefix_ = "%p";
  std::map<std::string, std::vector<std::string>> tables_;
  std::vector<std::pair<std::uint32_t, std::string>> branches_;
  std::map<std::string, std::uint64_t> local_, entry_parameters_;
};

}  // namespace ptx
