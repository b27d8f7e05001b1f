// write_msccl_xml(), to_msccl_xml(): an MscclAlgo, and so a Schedule, as the text that MSCCL loads.
#include <fmt/format.h>

#include <iterator>

#include "chorus/error.hpp"
#include "formats/msccl_export.hpp"
#include "formats/msccl_program.hpp"
#include "formats/msccl_xml.hpp"
#include "model/schedule/symmetry.hpp"

namespace chorus::formats {
namespace {

// What microsoft/msccl can load.
constexpr int kMostSteps = 256;
constexpr int kMostBlocks = 216;

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:  // control characters have no place in XML
        result += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return result;
}

void refuse_what_msccl_does_not_load(const MscclAlgo& algo) {
  for (std::size_t rank = 0; rank < algo.gpus.size(); ++rank) {
    const auto& blocks = algo.gpus[rank].blocks;
    if (blocks.size() > kMostBlocks) {
      throw InputError(fmt::format("rank {} of '{}' needs {} threadblocks, and MSCCL loads {}",
                                   rank, algo.name, blocks.size(), kMostBlocks));
    }
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (blocks[b].steps.size() <= kMostSteps) continue;
      throw InputError(fmt::format(
          "rank {} threadblock {} of '{}' needs {} steps, and MSCCL loads {}: use a schedule of "
          "fewer chunks",
          rank, b, algo.name, blocks[b].steps.size(), kMostSteps));
    }
  }
}

}  // namespace

std::string write_msccl_xml(const MscclAlgo& algo) {
  std::string text = fmt::format(
      "<algo name=\"{}\" proto=\"{}\" nchannels=\"{}\" nchunksperloop=\"{}\" ngpus=\"{}\" "
      "coll=\"{}\" inplace=\"{:d}\" outofplace=\"{:d}\" minBytes=\"{}\" maxBytes=\"{}\">\n",
      escaped(algo.name), algo.protocol, algo.channels, algo.chunks, algo.gpus.size(),
      algo.collective, algo.in_place, algo.out_of_place, algo.min_bytes, algo.max_bytes);
  const auto out = std::back_inserter(text);
  for (std::size_t rank = 0; rank < algo.gpus.size(); ++rank) {
    const MscclGpu& gpu = algo.gpus[rank];
    fmt::format_to(out, "  <gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">\n", rank,
                   gpu.input_chunks, gpu.output_chunks, gpu.scratch_chunks);
    for (std::size_t id = 0; id < gpu.blocks.size(); ++id) {
      const MscclBlock& block = gpu.blocks[id];
      fmt::format_to(out, "    <tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"{}\">\n", id,
                     block.send, block.receive, block.channel);
      for (std::size_t s = 0; s < block.steps.size(); ++s) {
        const MscclStep& step = block.steps[s];
        fmt::format_to(out,
                       "      <step s=\"{}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" "
                       "dstbuf=\"{}\" dstoff=\"{}\" cnt=\"{}\" depid=\"{}\" deps=\"{}\" "
                       "hasdep=\"{:d}\"",
                       s, name_of(step.type), letter(step.source.buffer), step.source.index,
                       letter(step.destination.buffer), step.destination.index, step.count,
                       step.waits_block, step.waits_step, step.awaited);
        if (step.level >= 0) fmt::format_to(out, " level=\"{}\"", step.level);
        text += "/>\n";
      }
      text += "    </tb>\n";
    }
    text += "  </gpu>\n";
  }
  return text + "</algo>\n";
}

std::string to_msccl_xml(const Schedule& schedule, const MscclXmlOptions& options) {
  if (!schedule.symmetry.empty()) return to_msccl_xml(expanded(schedule), options);
  const MscclAlgo algo = msccl_programs(schedule, options);
  refuse_what_msccl_does_not_load(algo);
  return write_msccl_xml(algo);
}

}  // namespace chorus::formats
