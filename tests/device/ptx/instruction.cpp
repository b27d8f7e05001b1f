// One instruction's text.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "parser.hpp"
#include "text.hpp"

namespace ptx {
namespace {

const std::map<std::string_view, Op>& operations() {
  static const std::map<std::string_view, Op> all = {
      {"mov", Op::mov},          {"cvt", Op::cvt},
      {"add", Op::add},          {"sub", Op::sub},
      {"mul", Op::mul},          {"mad", Op::mad},
      {"fma", Op::fma},          {"div", Op::div},
      {"rem", Op::rem},          {"shl", Op::shl},
      {"shr", Op::shr},          {"and", Op::bit_and},
      {"or", Op::bit_or},        {"xor", Op::bit_xor},
      {"not", Op::bit_not},      {"neg", Op::neg},
      {"abs", Op::abs},          {"min", Op::min},
      {"max", Op::max},          {"setp", Op::setp},
      {"selp", Op::selp},        {"prmt", Op::prmt},
      {"bfi", Op::bfi},          {"bfe", Op::bfe},
      {"popc", Op::popc},        {"clz", Op::clz},
      {"lop3", Op::lop3},        {"ld", Op::load},
      {"st", Op::store},         {"atom", Op::atom_add},
      {"fence", Op::fence},      {"membar", Op::fence},
      {"bra", Op::bra},          {"brx", Op::brx},
      {"call", Op::call},        {"ret", Op::ret},
      {"exit", Op::ret},         {"bar", Op::bar_sync},
      {"barrier", Op::bar_sync}, {"nanosleep", Op::nanosleep},
      {"trap", Op::trap},        {"cvta", Op::nop}};
  return all;
}

const std::map<std::string_view, Special>& specials() {
  static const std::map<std::string_view, Special> all = {
      {"%tid.x", Special::tid},       {"%ntid.x", Special::ntid}, {"%ctaid.x", Special::ctaid},
      {"%nctaid.x", Special::nctaid}, {"%laneid", Special::lane}, {"%globaltimer", Special::timer},
      {"%clock64", Special::timer}};
  return all;
}

/// What the words after an instruction's name say.
void modify(Instruction& one, const std::vector<std::string_view>& modifiers) {
  constexpr std::string_view kCompare[] = {"eq",  "ne",  "lt",  "le",  "gt",  "ge",  "equ",
                                           "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
  bool typed = false;
  for (const std::string_view word : modifiers) {
    if (const auto type = type_of(word)) {
      (typed ? one.from : one.type) = *type;
      typed = true;
      continue;
    }
    for (std::size_t i = 0; i < std::size(kCompare); ++i) {
      if (word == kCompare[i]) one.compare = static_cast<Compare>(i);
    }
    if (word == "lo" && one.op == Op::setp) one.compare = Compare::lt;
    if (word == "ls") one.compare = Compare::le;
    if (word == "hi" && one.op == Op::setp) one.compare = Compare::gt;
    if (word == "hs") one.compare = Compare::ge;
    if (word == "global") one.space = Space::global;
    if (word == "shared") one.space = Space::shared;
    if (word == "local") one.space = Space::local;
    if (word == "param") one.space = Space::param;
    if (word == "relaxed") one.order = Order::relaxed;
    if (word == "acquire") one.order = Order::acquire;
    if (word == "release") one.order = Order::release;
    if (word == "acq_rel") one.order = Order::acq_rel;
    if (word == "cta") one.scope = Scope::block;
    if (word == "gpu") one.scope = Scope::device;
    if (word == "sys") one.scope = Scope::system;
    if (word == "volatile") {  // PTX: relaxed, at the scope of the system
      one.order = Order::relaxed;
      one.scope = Scope::system;
    }
    if (word == "v2") one.width = 2;
    if (word == "v4") one.width = 4;
    if (word == "rzi" || word == "rz") one.round = Round::zero;
    if (word == "rmi") one.round = Round::down;
    if (word == "rpi") one.round = Round::up;
    if (one.op == Op::setp && word == "and") one.combine = '&';
    if (one.op == Op::setp && word == "or") one.combine = '|';
    if (one.op == Op::setp && word == "xor") one.combine = '^';
  }
}

bool has(const std::vector<std::string_view>& modifiers, std::string_view word) {
  return std::find(modifiers.begin(), modifiers.end(), word) != modifiers.end();
}

/// Which operation of a family the modifiers mean.
void specialise(Instruction& one, const std::vector<std::string_view>& modifiers) {
  if (one.op == Op::mul && has(modifiers, "wide")) one.op = Op::mul_wide;
  if (one.op == Op::mul && has(modifiers, "hi")) one.op = Op::mul_high;
  if (one.op == Op::mad && has(modifiers, "wide")) one.op = Op::mad_wide;
  if (one.op == Op::atom_add && has(modifiers, "cas")) one.op = Op::atom_cas;
  if (one.op == Op::atom_add && has(modifiers, "exch")) one.op = Op::atom_exch;
  if (one.op == Op::bar_sync && has(modifiers, "and")) one.op = Op::bar_and;
  if (one.op == Op::bar_sync && has(modifiers, "or")) one.op = Op::bar_or;
  if (one.type != Type::pred) return;
  if (one.op == Op::mov) one.op = Op::pred_mov;
  if (one.op == Op::bit_and) one.op = Op::pred_and;
  if (one.op == Op::bit_or) one.op = Op::pred_or;
  if (one.op == Op::bit_xor) one.op = Op::pred_xor;
  if (one.op == Op::bit_not) one.op = Op::pred_not;
}

/// Forms that no kernel of ours has and that this does not execute.
bool is_unknown(const Instruction& one, const std::vector<std::string_view>& modifiers) {
  static const std::set<std::string_view> refused = {"warp", "popc",  "cluster", "sat",
                                                     "ftz",  "tma",   "async",   "shared::cluster",
                                                     "mmio", "f16x2", "bf16x2",  "b128"};
  if (one.op == Op::mul_high && size_of(one.type) > 8) return true;
  return std::any_of(modifiers.begin(), modifiers.end(),
                     [](std::string_view word) { return refused.contains(word); });
}

}  // namespace

void Parser::instruction(std::string_view text, std::uint32_t line) {
  if (text.empty()) return;
  Instruction one;
  one.line = line;
  one.site = site_;
  if (text.starts_with('@')) {
    const auto end = text.find_first_of(" \t");
    one.guard = value(text.substr(1, end - 1), true);
    text = trim(text.substr(end));
  }
  const auto end = std::min(text.find_first_of(" \t\n"), text.size());
  const auto parts = split(text.substr(0, end), '.');
  const std::vector<std::string_view> modifiers(parts.begin() + 1, parts.end());
  const auto known = operations().find(parts[0]);
  if (known == operations().end()) fail("unknown instruction " + std::string(text));
  one.op = known->second;
  modify(one, modifiers);
  specialise(one, modifiers);
  if (is_unknown(one, modifiers)) fail("unknown form " + std::string(text));
  const std::string_view rest = trim(text.substr(end));
  if (parts[0] == "cvta") {
    const bool to = has(modifiers, "to");
    one.op = one.space != Space::shared ? Op::mov : to ? Op::to_shared : Op::from_shared;
    if (one.space == Space::param) one.op = Op::from_shared;
    one.type = Type::u64;
  }
  if (one.op == Op::call) {
    call(one, rest);
  } else {
    operands(one, parts[0], split(rest, ','));
  }
  append(std::move(one));
}

// The memory model has no access of several elements: a strong one of a vector is as many accesses,
// and what others do may come between them.
void Parser::append(Instruction one) {
  if (one.order == Order::weak || one.width == 1) {
    function_->code.push_back(std::move(one));
    return;
  }
  const auto split = [&](auto Instruction::*values) {
    const auto all = std::exchange(one.*values, {});
    for (std::uint32_t i = 0; i < one.width; ++i) {
      if (one.op == Op::load && all[i].slot == one.in[4].slot) fail("its address in a vector");
      Instruction& element = function_->code.emplace_back(one);
      (element.*values)[0] = all[i];
      element.width = 1;
      element.offset += i * size_of(one.type);
    }
  };
  if (one.op == Op::load) {
    split(&Instruction::out);
  } else {
    const Value address = one.in[4];
    split(&Instruction::in);
    for (std::uint32_t i = 0; i < one.width; ++i) (function_->code.end() - 1 - i)->in[4] = address;
  }
}

void Parser::operands(Instruction& one, std::string_view name,
                      const std::vector<std::string_view>& given) {
  const auto index = static_cast<std::uint32_t>(function_->code.size());
  switch (one.op) {
    case Op::bra:
      branches_.emplace_back(index, std::string(given.at(0)));
      return;
    case Op::brx:
      one.in[0] = value(given.at(0));
      tables_of_[one.line] = std::string(given.at(1));
      return;
    case Op::load:
    case Op::store:
      return memory(one, given);
    case Op::mov:
      if (name == "mov") return move(one, given);
      break;
    case Op::bar_sync:
      if (given.at(0) != "0" || given.size() > 1) fail("unknown barrier");
      return;
    case Op::bar_and:
    case Op::bar_or:
      if (given.size() != 3 || given[1] != "0") fail("unknown barrier");
      one.out[0] = value(given[0], true);
      one.in[0] = value(given[2], true);
      return;
    case Op::atom_add:
    case Op::atom_cas:
    case Op::atom_exch:
      one.out[0] = value(given.at(0));
      address(one, given.at(1));
      for (std::size_t i = 2; i < given.size(); ++i) one.in[i - 2] = value(given[i]);
      return;
    case Op::nanosleep:
    case Op::ret:
    case Op::trap:
    case Op::fence:
      return;
    default:
      break;
  }
  if (given.size() < 2 || given.size() > 5) fail("operands of " + std::string(name));
  const bool predicates = one.type == Type::pred;
  one.out[0] = value(given[0], predicates);
  if (given[0].find('|') != std::string_view::npos) fail("two results");
  for (std::size_t i = 1; i < given.size(); ++i) {
    const bool condition =
        predicates || (one.op == Op::setp && i == 3) || (one.op == Op::selp && i == 3);
    one.in[i - 1] = value(given[i], condition);
  }
}

// `mov` also packs and unpacks vectors and reads special registers and addresses.
void Parser::move(Instruction& one, const std::vector<std::string_view>& given) {
  const auto elements = [&](std::string_view text, auto& values) {
    const auto parts = split(text.substr(1, text.size() - 2), ',');
    one.width = static_cast<std::uint8_t>(parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) values.at(i) = value(parts[i]);
  };
  if (given.at(0).starts_with('{')) {
    one.op = Op::unpack;
    elements(given[0], one.out);
    one.in[0] = value(given.at(1));
    return;
  }
  one.out[0] = value(given[0]);
  if (given.at(1).starts_with('{')) {
    one.op = Op::pack;
    elements(given[1], one.in);
    return;
  }
  if (const auto special = specials().find(given[1]); special != specials().end()) {
    one.op = Op::special;
    one.special = special->second;
    return;
  }
  if (const auto local = local_.find(std::string(given[1])); local != local_.end()) {
    one.op = Op::local_address;
    one.offset = static_cast<std::int64_t>(local->second);
    return;
  }
  one.in[0] = value(given[1]);
}

void Parser::address(Instruction& one, std::string_view text) {
  std::string_view inside = trim(text.substr(1, text.size() - 2));
  const auto plus = inside.find('+');
  if (plus != std::string_view::npos) {
    one.offset = static_cast<std::int64_t>(number(trim(inside.substr(plus + 1))));
    inside = trim(inside.substr(0, plus));
  }
  one.in[4] = value(inside);
}

void Parser::memory(Instruction& one, const std::vector<std::string_view>& given) {
  const bool loads = one.op == Op::load;
  if (one.space == Space::param &&
      !(loads && function_->entry &&
        entry_parameters_.contains(
            variable(given.at(1).substr(1, given[1].find_first_of("+]") - 1)).first))) {
    return parameter(one, given);
  }
  const std::string_view data = given.at(loads ? 0 : 1);
  const auto put = [&](auto& values) {
    if (!data.starts_with('{')) {
      values[0] = value(data);
      return;
    }
    const auto parts = split(data.substr(1, data.size() - 2), ',');
    if (parts.size() != one.width) fail("a vector's length");
    for (std::size_t i = 0; i < parts.size(); ++i) values[i] = value(parts[i]);
  };
  if (loads) {
    put(one.out);
  } else {
    put(one.in);
  }
  address(one, given.at(loads ? 1 : 0));
}

// Parameters of functions are registers of caller and callee.
void Parser::parameter(Instruction& one, const std::vector<std::string_view>& given) {
  const bool loads = one.op == Op::load;
  std::string_view place = given.at(loads ? 1 : 0);
  place = trim(place.substr(1, place.size() - 2));
  if (const auto plus = place.find('+'); plus != std::string_view::npos) {
    if (number(place.substr(plus + 1)) != 0) fail("a parameter that is no scalar");
    place = trim(place.substr(0, plus));
  }
  const Value slot{.slot = register_of(std::string(place)), .used = true};
  one.op = Op::mov;
  one.out[0] = loads ? value(given[0]) : slot;
  one.in[0] = loads ? slot : value(given.at(1));
}

// `(result, ...), function, (argument, ...)`: pairs of the caller's register and, until all
// functions are known, the number of the callee's parameter.
void Parser::call(Instruction& one, std::string_view text) {
  const auto parts = split(text, ',');
  std::size_t at = 0;
  const auto take = [&](std::string_view list, auto& into) {
    std::uint32_t number = 0;
    for (const std::string_view name : split(list.substr(1, list.size() - 2), ',')) {
      into.emplace_back(register_of(std::string(name)), number++);
    }
  };
  if (parts.at(0).starts_with('(')) take(parts[at++], one.results);
  callees_[one.line] = std::string(parts.at(at++));
  if (at < parts.size()) take(parts[at], one.arguments);
}

}  // namespace ptx
