// Processes that wait at a coordinator for a job that has begun to take them in.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>

#include "chorus/schedule.hpp"

namespace chorus {

/// Who waits, and where they may go. Without sockets, with time given to it: a process that waits
/// asks again and again, and has gone when it no longer asks.
class WaitingRoom {
 public:
  using Time = std::chrono::steady_clock::time_point;
  /// A process that has not asked for so long does not wait any more.
  static constexpr std::chrono::milliseconds kAsksWithin{1'000};

  /// The ranks of a grown communicator that are free, and where it meets.
  struct Offer {
    std::string place;
    Rank first = 0;
    int world_size = 0;
  };
  struct Seat {
    std::string place;
    Rank rank = 0;
    int world_size = 0;

    bool operator==(const Seat&) const = default;
  };

  /// The process `identity`, once rank `was`, asks. Its seat; nothing while it has to wait. One
  /// that asks again after it was given a seat was not taken in: it waits for another.
  std::optional<Seat> ask(const std::string& identity, Rank was, Time now);
  /// How many wait.
  [[nodiscard]] int count(Time now) const;
  /// Forgets those who have gone.
  void tick(Time now);
  /// When the next of those who wait has gone, if it does not ask before.
  [[nodiscard]] std::optional<Time> deadline() const;
  /// In place of the offer before. Those who wait have its seats in the order of their old ranks;
  /// whoever comes later has what is left.
  void offer(const Offer& offer, Time now);

 private:
  struct Guest {
    Rank was = 0;
    Time asked;
    std::optional<Seat> seat = std::nullopt;
  };
  std::optional<Seat> next_seat();

  std::map<std::string, Guest> guests_;  ///< by identity
  std::optional<Offer> offer_;
};

}  // namespace chorus
