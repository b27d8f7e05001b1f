// From the text of a module to instructions.
#include <algorithm>
#include <cctype>
#include <stdexcept>

#include "module.hpp"
#include "parser.hpp"
#include "text.hpp"

namespace ptx {
Parser::Parser(Module& module, std::string_view text) : module_(module), text_(text) {}

void Parser::fail(const std::string& why) const {
  throw std::runtime_error("PTX, line " + std::to_string(line_) + ": " + why);
}

// Top level: directives end with ';' or a line, bodies with '}'.
void Parser::run() {
  while (at_ < text_.size()) {
    skip_blank();
    if (at_ >= text_.size()) break;
    if (text_.substr(at_).starts_with(".version") || text_.substr(at_).starts_with(".target") ||
        text_.substr(at_).starts_with(".address_size")) {
      take_line();
    } else if (text_.substr(at_).starts_with(".file") ||
               text_.substr(at_).starts_with(".section")) {
      section();
    } else {
      declaration();
    }
  }
  link();
}

void Parser::skip_blank() {
  while (at_ < text_.size()) {
    if (text_[at_] == '\n') ++line_;
    if (text_.substr(at_).starts_with("//")) {
      take_line();
    } else if (kBlank.find(text_[at_]) != std::string_view::npos) {
      ++at_;
    } else {
      return;
    }
  }
}

std::string_view Parser::take_line() {
  const auto end = std::min(text_.find('\n', at_), text_.size());
  const std::string_view line = text_.substr(at_, end - at_);
  at_ = end;
  return line;
}

// `.file N "name"`, and sections of debugging information with braces.
void Parser::section() {
  const std::string_view line = take_line();
  if (line.starts_with(".file")) {
    const auto parts = words(line);
    std::string name(parts.at(2));
    std::erase(name, '"');
    std::erase(name, ',');
    files_[number(parts[1])] = name.substr(name.rfind('/') + 1);
    return;
  }
  int depth = 0;
  do {
    skip_blank();
    depth += text_[at_] == '{' ? 1 : text_[at_] == '}' ? -1 : 0;
    if (text_[at_] != '{' && text_[at_] != '}') {
      take_line();
    } else {
      ++at_;
    }
  } while (depth > 0);
}

void Parser::declaration() {
  std::size_t end = at_;
  int depth = 0;
  for (; end < text_.size(); ++end) {
    depth += text_[end] == '(' ? 1 : text_[end] == ')' ? -1 : 0;
    if (depth == 0 && (text_[end] == ';' || text_[end] == '{')) break;
  }
  const std::string_view head = text_.substr(at_, end - at_);
  line_ += static_cast<std::uint32_t>(std::count(head.begin(), head.end(), '\n'));
  at_ = end + 1;
  const auto entry = head.find(".entry");
  const auto func = head.find(".func");
  if (end < text_.size() && text_[end] == '{') {
    begin_function(head.substr(entry != std::string_view::npos ? entry + 6 : func + 5),
                   entry != std::string_view::npos);
    body();
    allocate_slots(*function_, static_cast<std::uint32_t>(registers_.size()),
                   static_cast<std::uint32_t>(predicates_.size()));
    return;
  }
  if (head.find(".shared") == std::string_view::npos) return;
  const auto [name, bytes] = variable(head);
  module_.shared_[name] = module_.shared_bytes_;
  module_.shared_bytes_ += (bytes + 127) / 128 * 128;
}

// Name and bytes of a variable.
std::pair<std::string, std::uint64_t> Parser::variable(std::string_view text) {
  std::uint64_t element = 1;
  std::string_view name;
  for (const std::string_view word : words(text)) {
    if (word.starts_with('.')) {
      if (const auto type = type_of(word.substr(1))) element = size_of(*type);
    }
    name = word;
  }
  const auto bracket = name.find('[');
  const std::uint64_t count =
      bracket == std::string_view::npos ? 1 : number(name.substr(bracket + 1));
  return {std::string(name.substr(0, bracket)), count * element};
}

void Parser::begin_function(std::string_view head, bool entry) {
  auto made = std::make_unique<Function>();
  function_ = made.get();
  function_->entry = entry;
  registers_.clear();
  predicates_.clear();
  declared_.clear();
  labels_.clear();
  tables_.clear();
  branches_.clear();
  local_.clear();
  entry_parameters_.clear();
  head = trim(head);
  const auto take = [&](std::vector<std::uint32_t>& slots) {
    const auto close = head.find(')');
    for (const std::string_view one : split(head.substr(1, close - 1), ',')) {
      const auto [name, bytes] = variable(one);
      if (entry) {
        entry_parameters_[name] = function_->parameter_bytes;
        function_->parameter_bytes += (bytes + 7) / 8 * 8;
      } else {
        slots.push_back(register_of(name));
      }
    }
    head = trim(head.substr(close + 1));
  };
  if (head.starts_with('(')) take(function_->results);
  const auto open = std::min(head.find('('), head.size());
  function_->name = std::string(trim(head.substr(0, open)));
  head = head.substr(open);
  if (head.starts_with('(')) take(function_->parameters);
  module_.functions_[function_->name] = std::move(made);
}

// Statements up to the closing brace; those within hold declarations of a call or of temporaries.
void Parser::body() {
  int depth = 1;
  while (true) {
    skip_blank();
    if (text_[at_] == '{' || text_[at_] == '}') {
      depth += text_[at_] == '{' ? 1 : -1;
      ++at_;
      if (depth == 0) break;
      continue;
    }
    if (text_.substr(at_).starts_with(".loc\t") || text_.substr(at_).starts_with(".loc ")) {
      location(take_line());
      continue;
    }
    const auto end = text_.find_first_of(";:", at_);
    if (end == std::string_view::npos) fail("a function without end");
    std::string_view statement = text_.substr(at_, end - at_);
    const std::uint32_t begins = line_;
    line_ += static_cast<std::uint32_t>(std::count(statement.begin(), statement.end(), '\n'));
    at_ = end + 1;
    if (text_[end] == ':') {
      labels_[std::string(trim(statement))] = static_cast<std::uint32_t>(function_->code.size());
    } else if (statement = trim(statement); statement.starts_with('.')) {
      declare(statement);
    } else {
      instruction(statement, begins);
    }
  }
  for (const auto& [index, label] : branches_) {
    const auto found = labels_.find(label);
    if (found == labels_.end()) fail("no label " + label);
    function_->code[index].target = found->second;
  }
  for (Instruction& one : function_->code) {
    if (one.op != Op::brx) continue;
    for (const std::string& label : tables_.at(tables_of_.at(one.line)))
      one.targets.push_back(labels_.at(label));
  }
}

// `.loc file line column, function_name label, inlined_at file line column`
void Parser::location(std::string_view text) {
  const auto parts = words(text);
  // Files are named at the end of the text: link() puts their names for the numbers.
  const auto place = [&](std::size_t first) {
    return std::string(parts.at(first)) + ":" + std::string(parts.at(first + 1));
  };
  site_ = place(1);
  for (std::size_t i = 0; i + 2 < parts.size(); ++i) {
    if (parts[i] == "inlined_at") site_ += " in " + place(i + 1);
  }
}

void Parser::declare(std::string_view text) {
  const auto parts = words(text);
  if (parts[0] == ".reg") {
    const auto type = type_of(parts[1].substr(1));
    const std::string_view names = trim(text.substr(text.find(parts[1]) + parts[1].size()));
    for (const std::string_view name : split(names, ',')) {
      if (name.find('<') == std::string_view::npos) {
        declared_[std::string(name)] = type == Type::pred;
      } else if (type == Type::pred) {
        predicate_prefix_ = std::string(name.substr(0, name.find('<')));
      }
    }
  } else if (parts[0] == ".local") {
    const auto [name, bytes] = variable(text);
    local_[name] = function_->local_bytes;
    function_->local_bytes += (bytes + 15) / 16 * 16;
  } else if (parts[0] == ".param") {
    declared_[variable(text).first] = false;
  } else if (parts[0] == ".branchtargets") {
    for (const auto& [label, index] : labels_) {
      if (index != function_->code.size()) continue;
      auto& table = tables_[label];
      table.clear();
      for (const std::string_view one : split(text.substr(parts[0].size()), ','))
        table.emplace_back(one);
    }
  } else if (parts[0] != ".pragma" && parts[0] != ".callprototype") {
    fail("unknown directive " + std::string(parts[0]));
  }
}

std::uint32_t Parser::register_of(const std::string& name) {
  return registers_.try_emplace(name, static_cast<std::uint32_t>(registers_.size())).first->second;
}

bool Parser::is_predicate(const std::string& name) const {
  if (const auto found = declared_.find(name); found != declared_.end()) return found->second;
  return name.starts_with(predicate_prefix_) && name.size() > predicate_prefix_.size() &&
         std::isdigit(static_cast<unsigned char>(name[predicate_prefix_.size()])) != 0;
}

Value Parser::value(std::string_view text, bool predicate) {
  Value found;
  found.used = true;
  if (text.starts_with('!')) {
    found.negated = true;
    text.remove_prefix(1);
  }
  const std::string name(text);
  if (is_number(text)) {
    const std::uint64_t bits = number(text);
    found.fixed = module_.constant(predicate ? (bits != 0 ? ~std::uint64_t{0} : 0) : bits);
  } else if (is_predicate(name)) {
    found.slot =
        predicates_.try_emplace(name, static_cast<std::uint32_t>(predicates_.size())).first->second;
  } else if (text.starts_with('%') || declared_.contains(name) || registers_.contains(name)) {
    found.slot = register_of(name);
  } else if (const auto shared = module_.shared_.find(name); shared != module_.shared_.end()) {
    found.fixed = module_.constant(shared->second);
  } else if (const auto parameter = entry_parameters_.find(name);
             parameter != entry_parameters_.end()) {
    found.fixed = module_.constant(parameter->second);
  } else {
    fail("unknown operand " + name);
  }
  return found;
}

// After all functions are known: callees, indices.
void Parser::link() {
  for (auto& [name, function] : module_.functions_) {
    for (Instruction& one : function->code) {
      one.owner = function.get();
      one.index = static_cast<std::uint32_t>(module_.instructions_.size());
      module_.instructions_.push_back(&one);
      name_files(one.site);
      if (one.op != Op::call) continue;
      const auto found = module_.functions_.find(callees_.at(one.line));
      if (found == module_.functions_.end()) fail("no function " + callees_.at(one.line));
      one.callee = found->second.get();
      for (auto& [mine, theirs] : one.arguments) theirs = one.callee->parameters.at(theirs);
      for (auto& [mine, theirs] : one.results) theirs = one.callee->results.at(theirs);
    }
  }
}

// "1:80 in 3:208" by the names of files.
void Parser::name_files(std::string& site) const {
  std::string named;
  for (const std::string_view word : words(site)) {
    const auto colon = word.find(':');
    if (!named.empty()) named += ' ';
    if (colon == std::string_view::npos) {
      named += word;
    } else {
      named += files_.at(number(word.substr(0, colon)));
      named += word.substr(colon);
    }
  }
  site = named;
}

Module::Module(std::string_view text) : text_(text) { Parser(*this, text_).run(); }

const Function& Module::function(const std::string& name) const {
  const auto found = functions_.find(name);
  if (found == functions_.end()) throw std::runtime_error("the PTX has no function " + name);
  return *found->second;
}

const Lanes* Module::constant(std::uint64_t value) {
  const auto [found, is_new] = constants_.try_emplace(value, nullptr);
  if (is_new) {
    lanes_.emplace_back().fill(value);
    found->second = &lanes_.back();
  }
  return found->second;
}

std::string Module::describe(const Instruction& instruction) const {
  std::size_t begin = 0;
  for (std::uint32_t line = 1; line < instruction.line; ++line) begin = text_.find('\n', begin) + 1;
  const auto end = text_.find(';', begin);
  std::string text(trim(std::string_view(text_).substr(begin, end - begin)));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
  std::string function = instruction.owner->name;
  for (const char* const known : {"fold_wide", "fold_units", "load_unit", "store_unit",
                                  "scale_unit", "next_call", "report"}) {
    if (function.find(known) != std::string::npos) function = known;
  }
  if (function.size() > 40) function = function.substr(0, 40);
  return function + ", line " + std::to_string(instruction.line) + ": " + text +
         (instruction.site.empty() ? "" : " (" + instruction.site + ")");
}

}  // namespace ptx
