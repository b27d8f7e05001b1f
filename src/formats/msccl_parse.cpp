// parse_msccl_xml(): MSCCL XML text into an MscclAlgo, believing none of it.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <optional>
#include <pugixml.hpp>

#include "chorus/error.hpp"
#include "formats/msccl_program.hpp"
#include "model/json/reader.hpp"

namespace chorus::formats {
namespace {

// More than any machine that runs these files has, and little enough that what a short file
// announces cannot exhaust memory.
constexpr int kMostMscclRanks = 1024;
constexpr int kMostMscclChunks = 1 << 20;
constexpr int kMostChannels = 1 << 12;

/// Lines of the text by offset.
class Lines {
 public:
  explicit Lines(std::string_view text) {
    for (std::size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') ends_.push_back(i);
    }
  }
  [[nodiscard]] int at(std::ptrdiff_t offset) const {
    const auto end = std::lower_bound(ends_.begin(), ends_.end(), static_cast<std::size_t>(offset));
    return static_cast<int>(end - ends_.begin()) + 1;
  }

 private:
  std::vector<std::size_t> ends_;
};

/// An element and where it stands, so that whatever is wrong with it is reported by its line.
class Element {
 public:
  Element(pugi::xml_node node, const Lines& lines, std::string_view where)
      : node_(node), lines_(&lines), where_(where) {}

  [[nodiscard]] int line() const { return lines_->at(node_.offset_debug()); }
  [[nodiscard]] std::string_view name() const { return node_.name(); }

  [[noreturn]] void fail(std::string_view complaint) const {
    throw InputError(fmt::format("{}:{}: <{}> {}", where_, line(), name(), complaint));
  }

  /// Fails if there is any other attribute, or one of them twice.
  void expect_attributes(std::initializer_list<std::string_view> known) const {
    for (const pugi::xml_attribute attribute : node_.attributes()) {
      if (std::find(known.begin(), known.end(), attribute.name()) == known.end()) {
        fail(fmt::format("has an unknown attribute '{}': known are {}", attribute.name(),
                         fmt::join(known, ", ")));
      }
      for (auto other = attribute.next_attribute(); other; other = other.next_attribute()) {
        if (std::string_view(other.name()) == attribute.name()) {
          fail(fmt::format("has the attribute '{}' twice", attribute.name()));
        }
      }
    }
  }

  [[nodiscard]] bool has(const char* name) const { return !node_.attribute(name).empty(); }

  [[nodiscard]] std::string text(const char* name) const {
    if (!has(name)) fail(fmt::format("lacks the attribute '{}'", name));
    return node_.attribute(name).value();
  }

  template <class Integer = int>
  [[nodiscard]] Integer number(const char* name, Integer low, Integer high) const {
    const std::string value = text(name);
    Integer number{};
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < low ||
        number > high) {
      fail(fmt::format("has {}=\"{}\": a whole number from {} to {} is needed", name, value, low,
                       high));
    }
    return number;
  }

  [[nodiscard]] bool flag(const char* name) const { return number(name, 0, 1) == 1; }

  /// Child elements, all of which have one of the names; fails at text between them.
  [[nodiscard]] std::vector<Element> children(std::initializer_list<std::string_view> known) const {
    std::vector<Element> result;
    for (const pugi::xml_node child : node_.children()) {
      if (child.type() == pugi::node_comment) continue;
      const Element element(child, *lines_, where_);
      if (child.type() != pugi::node_element) {
        fail(fmt::format("holds text ('{:.20}') where only elements are allowed", child.value()));
      }
      if (std::find(known.begin(), known.end(), child.name()) == known.end()) {
        element.fail(
            fmt::format("is unknown within <{}>: known are {}", name(), fmt::join(known, ", ")));
      }
      result.push_back(element);
    }
    return result;
  }

 private:
  pugi::xml_node node_;
  const Lines* lines_;
  std::string_view where_;
};

StepType step_type(const Element& element) {
  const std::string type = element.text("type");
  std::string known;
  for (int i = 0; i <= static_cast<int>(StepType::nop); ++i) {
    const auto candidate = static_cast<StepType>(i);
    if (name_of(candidate) == type) return candidate;
    known += fmt::format("{}{}", i == 0 ? "" : ", ", name_of(candidate));
  }
  if (type == "ra") {
    element.fail(
        "has type=\"ra\", which adds a tensor from outside the collective: no schedule can say "
        "that");
  }
  element.fail(fmt::format("has an unknown type=\"{}\": known are {}", type, known));
}

Buffer buffer(const Element& element, const char* attribute) {
  const std::string letter = element.text(attribute);
  if (letter == "i") return Buffer::input;
  if (letter == "o") return Buffer::output;
  if (letter == "s") return Buffer::scratch;
  element.fail(fmt::format("has {}=\"{}\": i (input), o (output) or s (scratch) is needed",
                           attribute, letter));
}

int size_of(const MscclGpu& gpu, Buffer buffer) {
  switch (buffer) {
    case Buffer::input:
      return gpu.input_chunks;
    case Buffer::output:
      return gpu.output_chunks;
    case Buffer::scratch:
      return gpu.scratch_chunks;
  }
  return 0;
}

/// The range that `buf` and `off` name; only what the step itself touches has to lie within.
LocalRange range(const Element& element, const char* buf, const char* off, int count, bool touched,
                 const MscclGpu& gpu) {
  const LocalRange result{buffer(element, buf), element.number(off, -1, kMostMscclChunks)};
  if (!touched) return result;
  const int size = size_of(gpu, result.buffer);
  if (result.index < 0 || result.index + count > size) {
    element.fail(fmt::format(
        "touches {}[{}] to {}[{}] of rank's {} chunks there: {} or {} is wrong", element.text(buf),
        result.index, element.text(buf), result.index + count - 1, size, off, "cnt"));
  }
  return result;
}

MscclStep parse_step(const Element& element, const MscclGpu& gpu, const MscclBlock& block) {
  element.expect_attributes({"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid",
                             "deps", "hasdep", "level"});
  MscclStep step{.line = element.line(), .type = step_type(element)};
  const int expected = static_cast<int>(block.steps.size());
  if (element.number("s", 0, std::numeric_limits<int>::max()) != expected) {
    element.fail(fmt::format("has s=\"{}\" where {} comes next", element.text("s"), expected));
  }
  step.count = element.number("cnt", step.type == StepType::nop ? 0 : 1, kMostMscclChunks);
  step.source = range(element, "srcbuf", "srcoff", step.count, reads(step.type), gpu);
  step.destination = range(element, "dstbuf", "dstoff", step.count, writes(step.type), gpu);
  return step;
}

/// The short form: one buffer per step, by which only half of the types can be told.
MscclStep parse_op(const Element& element, const MscclGpu& gpu, const MscclBlock& block) {
  element.expect_attributes(
      {"step", "type", "buf", "off", "cnt", "depid", "deps", "hasdep", "level"});
  MscclStep step{.line = element.line(), .type = step_type(element)};
  const int expected = static_cast<int>(block.steps.size());
  if (element.number("step", 0, std::numeric_limits<int>::max()) != expected) {
    element.fail(
        fmt::format("has step=\"{}\" where {} comes next", element.text("step"), expected));
  }
  if (step.type == StepType::nop) return step;
  if (step.type != StepType::send && step.type != StepType::receive &&
      step.type != StepType::receive_reduce_copy) {
    element.fail(
        fmt::format("of type {} does not say both where it reads and where it stores: have the "
                    "file written with <step> (old_format)",
                    name_of(step.type)));
  }
  step.count = element.has("cnt") ? element.number("cnt", 1, kMostMscclChunks) : 1;
  step.source = step.destination = range(element, "buf", "off", step.count, true, gpu);
  return step;
}

void parse_dependency(const Element& element, MscclStep& step) {
  constexpr int kMost = std::numeric_limits<int>::max();
  if (element.has("depid")) step.waits_block = element.number("depid", -1, kMost);
  if (element.has("deps")) step.waits_step = element.number("deps", -1, kMost);
  if ((step.waits_block < 0) != (step.waits_step < 0)) {
    element.fail(fmt::format("has depid=\"{}\" and deps=\"{}\": both name a step or both are -1",
                             step.waits_block, step.waits_step));
  }
  if (element.has("hasdep")) step.awaited = element.flag("hasdep");
  if (element.has("level")) step.level = element.number("level", 0, kMost);
}

MscclBlock parse_block(const Element& element, const MscclAlgo& algo, Rank rank, int ranks) {
  const MscclGpu& gpu = algo.gpus[rank];
  element.expect_attributes({"id", "send", "recv", "chan"});
  MscclBlock block{.line = element.line()};
  if (element.number("id", 0, std::numeric_limits<int>::max()) !=
      static_cast<int>(gpu.blocks.size())) {
    element.fail(
        fmt::format("has id=\"{}\" where {} comes next", element.text("id"), gpu.blocks.size()));
  }
  block.send = element.number("send", -1, ranks - 1);
  block.receive = element.number("recv", -1, ranks - 1);
  block.channel = element.number("chan", 0, algo.channels - 1);
  if (block.send == rank || block.receive == rank) {
    element.fail(fmt::format("makes rank {} its own peer", rank));
  }
  for (const Element& child : element.children({"step", "op"})) {
    MscclStep step =
        child.name() == "step" ? parse_step(child, gpu, block) : parse_op(child, gpu, block);
    parse_dependency(child, step);
    if (sends(step.type) && block.send < 0) {
      child.fail("sends, but its threadblock has send=\"-1\"");
    }
    if (receives(step.type) && block.receive < 0) {
      child.fail("receives, but its threadblock has recv=\"-1\"");
    }
    block.steps.push_back(step);
  }
  return block;
}

void check_dependencies(const MscclGpu& gpu, std::string_view where) {
  for (const MscclBlock& block : gpu.blocks) {
    for (const MscclStep& step : block.steps) {
      if (step.waits_block < 0) continue;
      const auto complain = [&](const std::string& complaint) {
        throw InputError(fmt::format("{}:{}: <step> waits for {}", where, step.line, complaint));
      };
      if (step.waits_block >= static_cast<int>(gpu.blocks.size())) {
        complain(fmt::format("threadblock {} of {}", step.waits_block, gpu.blocks.size()));
      }
      const auto& steps = gpu.blocks[step.waits_block].steps;
      if (step.waits_step >= static_cast<int>(steps.size())) {
        complain(fmt::format("step {} of threadblock {}, which has {}", step.waits_step,
                             step.waits_block, steps.size()));
      }
    }
  }
}

void parse_gpu(const Element& element, MscclAlgo& algo, std::vector<char>& seen,
               std::string_view where) {
  element.expect_attributes({"id", "i_chunks", "o_chunks", "s_chunks"});
  const int ranks = static_cast<int>(algo.gpus.size());
  const Rank rank = element.number("id", 0, ranks - 1);
  if (seen[rank]) element.fail(fmt::format("has id=\"{}\", which was there already", rank));
  seen[rank] = 1;
  MscclGpu& gpu = algo.gpus[rank];
  gpu.line = element.line();
  gpu.input_chunks = element.number("i_chunks", 0, kMostMscclChunks);
  gpu.output_chunks = element.number("o_chunks", 0, kMostMscclChunks);
  gpu.scratch_chunks = element.number("s_chunks", 0, kMostMscclChunks);
  for (const Element& child : element.children({"tb", "copy"})) {
    if (child.name() == "tb") {
      gpu.blocks.push_back(parse_block(child, algo, rank, ranks));
      continue;
    }
    child.expect_attributes({"i_off", "o_off"});
    gpu.copies.emplace_back(child.number("i_off", 0, gpu.input_chunks - 1),
                            child.number("o_off", 0, gpu.output_chunks - 1));
  }
  check_dependencies(gpu, where);
}

/// Schedules are saved with their name, as UTF-8; XML has no control characters.
void refuse_unprintable(const Element& element, const std::string& name) {
  bool text = std::none_of(name.begin(), name.end(),
                           [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  try {
    (void)json::quote(name);
  } catch (const InputError&) {
    text = false;
  }
  if (!text) element.fail("has a name that is no UTF-8 text without control characters");
}

MscclAlgo parse_algo(const Element& element) {
  element.expect_attributes({"name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll",
                             "inplace", "outofplace", "minBytes", "maxBytes", "nthreads", "redop"});
  MscclAlgo algo{.line = element.line(), .name = element.text("name")};
  refuse_unprintable(element, algo.name);
  algo.protocol = element.text("proto");
  if (algo.protocol != "Simple" && algo.protocol != "LL" && algo.protocol != "LL128") {
    element.fail(fmt::format("has proto=\"{}\": Simple, LL or LL128 is needed", algo.protocol));
  }
  algo.collective = element.text("coll");
  algo.channels = element.number("nchannels", 1, kMostChannels);
  if (element.has("nchunksperloop"))
    algo.chunks = element.number("nchunksperloop", 1, kMostMscclChunks);
  algo.in_place = element.flag("inplace");
  algo.out_of_place = element.has("outofplace") ? element.flag("outofplace") : !algo.in_place;
  if (!algo.in_place && !algo.out_of_place) {
    element.fail("has inplace=\"0\" and outofplace=\"0\", so it can never run");
  }
  constexpr std::uint64_t kMostBytes = std::numeric_limits<std::uint64_t>::max();
  if (element.has("minBytes")) {
    algo.min_bytes = element.number<std::uint64_t>("minBytes", 0, kMostBytes);
  }
  if (element.has("maxBytes")) {
    algo.max_bytes = element.number<std::uint64_t>("maxBytes", 0, kMostBytes);
  }
  algo.gpus.resize(element.number("ngpus", 1, kMostMscclRanks));
  return algo;
}

}  // namespace

MscclAlgo parse_msccl_xml(std::string_view text, std::string_view where) {
  const Lines lines(text);
  pugi::xml_document document;
  const pugi::xml_parse_result result =
      document.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
  if (!result) {
    throw InputError(
        fmt::format("{}:{}: not XML: {}", where, lines.at(result.offset), result.description()));
  }
  const Element root(document.document_element(), lines, where);
  if (root.name() != "algo") {
    throw InputError(fmt::format("{}:{}: <{}> where MSCCL XML begins with <algo>", where,
                                 root.line(), root.name()));
  }
  MscclAlgo algo = parse_algo(root);
  std::vector<char> seen(algo.gpus.size());
  for (const Element& gpu : root.children({"gpu"})) parse_gpu(gpu, algo, seen, where);
  const auto absent = std::find(seen.begin(), seen.end(), 0);
  if (absent != seen.end()) {
    root.fail(fmt::format("has ngpus=\"{}\", but no <gpu id=\"{}\">", seen.size(),
                          absent - seen.begin()));
  }
  if (algo.chunks == 0) {  // the short form leaves it out: the largest buffer
    for (const MscclGpu& gpu : algo.gpus) {
      algo.chunks = std::max({algo.chunks, gpu.input_chunks, gpu.output_chunks});
    }
    if (algo.chunks == 0) root.fail("lacks the attribute 'nchunksperloop'");
  }
  return algo;
}

}  // namespace chorus::formats
