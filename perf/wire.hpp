// Frames between the driver and its workers: a length and a JSON object, over a unix socket.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "perf/job.hpp"

namespace chorus::perf {

/// By which workers that come over the network show whose they are.
inline constexpr const char* kTokenVariable = "CHORUS_PERF_TOKEN";

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
  explicit FrameReader(std::uint32_t most_bytes = kMaxFrameBytes) : most_bytes_(most_bytes) {}
  /// From now on.
  void allow(std::uint32_t most_bytes) { most_bytes_ = most_bytes; }
  /// Throws chorus::Error when a frame announces more than is allowed.
  void append(std::string_view bytes);
  [[nodiscard]] std::optional<std::string> next();

 private:
  void check(std::uint32_t length) const;

  std::string bytes_;
  std::uint32_t most_bytes_;
};

/// A number of rank 0 that all ranks, or ranks 0 and 1, go on with: across hosts through the
/// driver.
struct Agreement {
  std::uint64_t number = 0;
  bool pair = false;
};

/// What a worker says: it is ready, a block is done, or it failed and goes. Before it is ready it
/// may leave a value for the others, or ask for one, which is answered by a frame that holds it.
struct Reply {
  std::optional<Hello> hello = {};
  std::optional<Sample> sample = {};
  std::optional<Agreement> agree = {};
  std::optional<std::pair<std::string, std::string>> set = {};
  std::optional<std::string> get = {};
  std::string error = {};
};

/// Equal for the processes of one machine (or container that has a name and boot of its own).
[[nodiscard]] std::string host_key();

[[nodiscard]] std::string to_json(const Job& job);
[[nodiscard]] std::string to_json(const Reply& reply);
[[nodiscard]] std::string to_json(const Welcome& welcome);
/// Throw chorus::InputError for anything but what to_json() writes.
[[nodiscard]] Job job_from_json(std::string_view text);
[[nodiscard]] Reply reply_from_json(std::string_view text);
[[nodiscard]] Welcome welcome_from_json(std::string_view text);

}  // namespace chorus::perf
