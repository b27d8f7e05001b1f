// Moves bytes between hosts to see how fast they go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/engine.hpp"

namespace chorus {

/// How long and how much one flow sends. A flow ends when `duration_s` are over and it has sent
/// `least_bytes`, or with `most_bytes`.
struct FlowSize {
  double duration_s = 0.040;
  std::uint64_t least_bytes = 384 << 10;
  std::uint64_t most_bytes = 8 << 20;
};

/// What this rank saw of a flow that came in.
struct Received {
  double bytes_per_s = 0;
  std::uint64_t bytes = 0;
};

/// Whoever asked for a probe has no more use for it.
class ProbeStopped : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "probing was stopped"; }
};

/// Runs flows over links that are not in use otherwise. Every wait ends: a verdict of the
/// coordinator, a broken connection or `patience_ms` without a byte throws CollectiveError naming
/// the peer; `stop` throws ProbeStopped.
class FlowRunner {
 public:
  /// Of the first message of a flow by one network: less would go with the small messages,
  /// whichever path those take. Slots must not be smaller.
  static constexpr std::size_t kLeastOfNetwork = 12 << 10;

  FlowRunner(Control& control, Connections& connections, Engine& engine, const GroupPlace& place,
             const SlotLayout& layout, int patience_ms, std::stop_token stop);

  /// Sends to all of `to` and receives from all of `from` at the same time; they call it too.
  ///
  /// The rate of a flow is steady_rate() of its arrivals. [from] By one `network` only, if one is
  /// given; from a peer whose link has no path there nothing is received, whatever came.
  std::vector<Received> exchange(std::span<const Rank> to, std::span<const Rank> from,
                                 const FlowSize& size,
                                 std::optional<std::string_view> network = std::nullopt);

  /// Half a round trip to `peer`, seconds (a fast one of several, as a busy machine spoils some);
  /// 0 on the side that is not `first`.
  double half_round_trip(Rank peer, bool first);

 private:
  struct Outgoing;
  struct Incoming;

  template <class Done>
  void drive(std::span<Link* const> links, const Rank& waiting_for, const std::string& what,
             Done step);
  bool progress(std::span<Link* const> links);
  void sleep(std::span<Link* const> links, const std::function<bool()>& step);

  Control& control_;
  Connections& connections_;
  Engine& engine_;
  const GroupPlace& place_;
  SlotLayout layout_;
  int patience_ms_;
  std::stop_token stop_;
  std::vector<std::byte> source_, sink_;
  std::optional<std::string> network_;           // that links were last told to take
  std::shared_ptr<const NetworkShares> shares_;  // the same, as they are told
};

}  // namespace chorus
