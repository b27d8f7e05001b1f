// Which of many sockets have brought something, or have room again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/files/fd.hpp"

namespace chorus {

/// To ask a socket is a call of the kernel, of 0.2 µs and more: of a rank with ten peers 68,000 of
/// 71,000 reads in two seconds of all-reduces found nothing, and 2,600 of 3,300 times that it sent
/// there was no room. Where they are many, one call asks for all (epoll(7)); where they are few,
/// each is read as it comes. A socket that has no room is in either case left alone until the
/// kernel says that it has.
///
/// Of one thread at a time, as the links of a transport are.
class TcpReadiness {
 public:
  TcpReadiness();

  /// A new connection: with all that it has brought before.
  void watch(int fd);
  /// A link is about to read from its `sockets`. `round`: its own, from 0. The first that comes
  /// again since all were asked asks anew.
  void look(std::uint64_t& round, std::size_t sockets);
  /// The same for one that has something to send and no room for it.
  void look_for_room(std::uint64_t& round);
  /// Asks for all.
  void refresh();

  [[nodiscard]] bool may_read(int fd) const { return direct_ || was_readable(fd); }
  [[nodiscard]] bool may_write(int fd) const { return (state(fd) & kWritable) != 0; }
  /// A descriptor that is readable when a socket that watches() names has changed since all were
  /// asked.
  [[nodiscard]] int fd() const { return epoll_.get(); }
  [[nodiscard]] bool watches(int fd) const {
    return (state(fd) & (kAlwaysReadable | kAlwaysWritable)) == 0;
  }
  /// Bytes have come that nobody has read, as far as is known.
  [[nodiscard]] bool was_readable(int fd) const { return (state(fd) & kReadable) != 0; }
  /// The kernel has just said so.
  void is_empty(int fd);
  void is_full(int fd);

 private:
  static constexpr std::uint8_t kReadable = 1, kWritable = 2;
  /// Something stays to be read for good: the end, or an error; or it cannot be watched.
  static constexpr std::uint8_t kAlwaysReadable = 4, kAlwaysWritable = 8;

  [[nodiscard]] std::uint8_t state(int fd) const { return states_[static_cast<std::size_t>(fd)]; }
  void set(int fd, std::uint8_t state);

  Fd epoll_;
  std::vector<std::uint8_t> states_;  // [descriptors]; of those watched
  std::size_t full_ = 0;              // of them
  bool direct_ = true;
  std::size_t in_round_ = 0;  // sockets of the links that have looked in it
  std::uint64_t round_ = 0;
  std::uint64_t room_round_ = 0;
};

}  // namespace chorus
