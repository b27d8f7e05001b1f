// Small MSCCL programs written by hand, with every step type and both ends of each mistake.
#pragma once

#include <fmt/format.h>

#include <string>

namespace chorus::formats {

/// A step as the files have it; `wait` is "BLOCK.STEP" or empty.
inline std::string step(int s, const std::string& type, const std::string& src,
                        const std::string& dst, int cnt = 1, const std::string& wait = "",
                        bool awaited = false) {
  const auto split = [](const std::string& place) {
    return std::pair(place.substr(0, 1), place.substr(1));
  };
  const auto [srcbuf, srcoff] = split(src);
  const auto [dstbuf, dstoff] = split(dst);
  const auto dot = wait.find('.');
  return fmt::format(
      "<step s=\"{}\" type=\"{}\" srcbuf=\"{}\" srcoff=\"{}\" dstbuf=\"{}\" dstoff=\"{}\" "
      "cnt=\"{}\" depid=\"{}\" deps=\"{}\" hasdep=\"{:d}\"/>\n",
      s, type, srcbuf, srcoff, dstbuf, dstoff, cnt, wait.empty() ? "-1" : wait.substr(0, dot),
      wait.empty() ? "-1" : wait.substr(dot + 1), awaited);
}

inline std::string block(int id, int send, int recv, const std::string& steps, int chan = 0) {
  return fmt::format("<tb id=\"{}\" send=\"{}\" recv=\"{}\" chan=\"{}\">\n{}</tb>\n", id, send,
                     recv, chan, steps);
}

inline std::string gpu(int id, int i, int o, int s, const std::string& content) {
  return fmt::format("<gpu id=\"{}\" i_chunks=\"{}\" o_chunks=\"{}\" s_chunks=\"{}\">\n{}</gpu>\n",
                     id, i, o, s, content);
}

inline std::string algo(const std::string& coll, int ranks, int chunks, const std::string& gpus,
                        const std::string& more = "inplace=\"1\"") {
  return fmt::format(
      "<algo name=\"test\" proto=\"Simple\" nchannels=\"2\" nchunksperloop=\"{}\" ngpus=\"{}\" "
      "coll=\"{}\" {}>\n{}</algo>\n",
      chunks, ranks, coll, more, gpus);
}

/// Two ranks swap their single chunk and add what comes: the textbook all-reduce, in place.
inline std::string exchange() {
  std::string gpus;
  for (int r = 0; r < 2; ++r) {
    gpus += gpu(r, 1, 0, 0,
                block(0, 1 - r, 1 - r, step(0, "s", "i0", "i0") + step(1, "rrc", "i0", "i0")));
  }
  return algo("allreduce", 2, 1, gpus);
}

/// The same through scratch and a second threadblock that waits for the first.
inline std::string exchange_by_scratch(const std::string& wait = "0.1", bool awaited = true) {
  std::string gpus;
  for (int r = 0; r < 2; ++r) {
    gpus += gpu(r, 1, 0, 1,
                block(0, 1 - r, 1 - r,
                      step(0, "s", "i0", "s0") + step(1, "r", "i0", "s0", 1, "", awaited)) +
                    block(1, -1, -1, step(0, "re", "s0", "i0", 1, wait)));
  }
  return algo("allreduce", 2, 1, gpus);
}

/// Three ranks in a chain and back: rrs, rrcs and rcs, none of them needed elsewhere here.
inline std::string chain() {
  return algo("allreduce", 3, 1,
              gpu(0, 1, 0, 0,
                  block(0, 1, -1, step(0, "s", "i0", "i0", 1, "", true)) +
                      block(1, -1, 2, step(0, "r", "i0", "i0", 1, "0.0"))) +
                  gpu(1, 1, 0, 0,
                      block(0, 2, 0, step(0, "rrs", "i0", "i0", 1, "", true)) +
                          block(1, -1, 2, step(0, "r", "i0", "i0", 1, "0.0"), 1)) +
                  gpu(2, 1, 0, 0,
                      block(0, 0, 1, step(0, "rrcs", "i0", "i0", 1, "", true)) +
                          block(1, 1, -1, step(0, "s", "i0", "i0", 1, "0.0"), 1)));
}

/// Ranks 0 and 1 gather by way of rank 2, with the local copies that TACCL writes as <copy>.
inline std::string gather_by_copies() {
  std::string gpus;
  for (int r = 0; r < 2; ++r) {
    gpus +=
        gpu(r, 1, 2, 0,
            fmt::format("<copy i_off=\"0\" o_off=\"{}\"/>\n", r) +
                block(0, 1 - r, 1 - r,
                      step(0, "s", "i0", "o0") + step(1, "r", "i0", fmt::format("o{}", 1 - r))));
  }
  return algo("allgather", 2, 2, gpus, "inplace=\"0\" redop=\"nop\"");
}

}  // namespace chorus::formats
