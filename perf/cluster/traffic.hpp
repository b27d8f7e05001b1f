// What else goes over the cables of an emulated cluster.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace chorus::perf {

class Cluster;

/// One TCP stream from host to host, for as long as the cluster stands.
struct Stream {
  int from = 0;
  int to = 0;
  int network = 0;
  double bytes_per_s = 0;  ///< payload that it sends where nothing slows it down

  bool operator==(const Stream&) const = default;
};

/// "host0>host2:0.02" in GB/s, or "host0>host2/net1:0.02" by another cable than the first. Throws
/// InputError naming the column.
[[nodiscard]] Stream stream_named(const std::string& text);

/// A sender and a receiver for each stream, which die with this object and with this process.
class Traffic {
 public:
  Traffic() = default;
  /// Throws InputError for a host or cable that `cluster` does not have, Error where nothing gets
  /// through.
  Traffic(const Cluster& cluster, const std::vector<Stream>& streams);
  Traffic(Traffic&& other) noexcept;
  Traffic& operator=(Traffic&& other) noexcept;
  ~Traffic();

 private:
  void end() noexcept;

  std::vector<pid_t> pids_;
};

}  // namespace chorus::perf
