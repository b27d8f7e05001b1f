// Frames between the driver and its workers: a length and a JSON object, over a unix socket.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "perf/job.hpp"

namespace chorus::perf {

/// Frames larger than this are taken for garbage.
inline constexpr std::uint32_t kMaxFrameBytes = 64U << 20;

/// One frame to the peer. Throws chorus::Error when it is gone.
void send_frame(int socket, std::string_view text);
/// Blocks for one frame; nothing at the end of the connection. Throws chorus::Error for a broken
/// connection or an impossible length.
[[nodiscard]] std::optional<std::string> receive_frame(int socket);

/// Takes bytes as they come and hands out whole frames.
class FrameReader {
 public:
  /// Throws chorus::Error when a frame announces more than kMaxFrameBytes.
  void append(std::string_view bytes);
  [[nodiscard]] std::optional<std::string> next();

 private:
  std::string bytes_;
};

/// What a worker says: it is ready, a block is done, or it failed and goes.
struct Reply {
  std::optional<Hello> hello = {};
  std::optional<Sample> sample = {};
  std::string error = {};
};

[[nodiscard]] std::string to_json(const Job& job);
[[nodiscard]] std::string to_json(const Reply& reply);
/// Throw chorus::InputError for anything but what to_json() writes.
[[nodiscard]] Job job_from_json(std::string_view text);
[[nodiscard]] Reply reply_from_json(std::string_view text);

}  // namespace chorus::perf
