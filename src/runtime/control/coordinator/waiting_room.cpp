#include "runtime/control/coordinator/waiting_room.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace chorus {

std::optional<WaitingRoom::Seat> WaitingRoom::next_seat() {
  if (!offer_ || offer_->first >= offer_->world_size) return std::nullopt;
  return Seat{.place = offer_->place, .rank = offer_->first++, .world_size = offer_->world_size};
}

void WaitingRoom::tick(Time now) {
  std::erase_if(guests_, [&](const auto& guest) { return guest.second.asked + kAsksWithin < now; });
}

std::optional<WaitingRoom::Seat> WaitingRoom::ask(const std::string& identity, Rank was, Time now) {
  tick(now);
  const auto found = guests_.find(identity);
  if (found != guests_.end() && found->second.seat) {
    std::optional<Seat> seat = std::move(found->second.seat);
    guests_.erase(found);
    return seat;
  }
  if (auto seat = next_seat()) {
    guests_.erase(identity);
    return seat;
  }
  guests_[identity] = {.was = was, .asked = now};
  return std::nullopt;
}

int WaitingRoom::count(Time now) const {
  return static_cast<int>(std::ranges::count_if(guests_, [&](const auto& guest) {
    return !guest.second.seat && guest.second.asked + kAsksWithin >= now;
  }));
}

std::optional<WaitingRoom::Time> WaitingRoom::deadline() const {
  std::optional<Time> next;
  for (const auto& [identity, guest] : guests_) {
    const Time gone = guest.asked + kAsksWithin + std::chrono::milliseconds(1);
    next = next ? std::min(*next, gone) : gone;
  }
  return next;
}

void WaitingRoom::offer(const Offer& offer, Time now) {
  offer_ = offer;
  std::vector<std::pair<Rank, Guest*>> waiting;
  for (auto& [identity, guest] : guests_) {
    guest.seat.reset();
    if (guest.asked + kAsksWithin >= now) waiting.emplace_back(guest.was, &guest);
  }
  std::ranges::stable_sort(waiting, {}, &std::pair<Rank, Guest*>::first);
  for (const auto& [was, guest] : waiting) guest->seat = next_seat();
}

}  // namespace chorus
