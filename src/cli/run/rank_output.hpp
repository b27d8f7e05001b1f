// What ranks print, on its way through the launcher: lines with their rank's number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/files/fd.hpp"

namespace chorus {

/// One of the launcher's own streams, which it never waits for: whoever reads it may be slow, or
/// stuck, and the ranks have to be looked after all the same.
class Outlet {
 public:
  /// `fd` stays the caller's, and blocking, for other processes share that.
  explicit Outlet(int fd);

  /// Keeps `text` until there is room for it, and writes what there is room for.
  void put(std::string_view text);
  void flush();

  /// To be polled for room while something is pending.
  [[nodiscard]] int fd() const { return own_ ? own_.get() : fd_; }
  [[nodiscard]] bool is_pending() const { return !pending_.empty(); }
  /// So much is pending that ranks had better wait before they print more.
  [[nodiscard]] bool is_full() const;
  /// Bytes that were written so far.
  [[nodiscard]] std::uint64_t written() const { return written_; }
  /// Why output could not be handed on (errno), or 0.
  [[nodiscard]] int lost() const { return lost_; }

 private:
  [[nodiscard]] std::size_t room() const;

  int fd_;
  Fd own_;  ///< the same pipe or terminal, opened again without blocking
  bool always_room_ = false;
  int lost_ = 0;
  std::uint64_t written_ = 0;
  std::string pending_;
};

/// True if both descriptors are of one pipe, terminal or file.
[[nodiscard]] bool lead_to_one(int a, int b);

/// One stream of one rank, cut into lines that carry its number.
class PrefixedStream {
 public:
  /// `from` does not block. `to` outlives this.
  PrefixedStream(Fd from, Outlet& to, int rank);

  [[nodiscard]] int fd() const { return from_.get(); }
  [[nodiscard]] const Outlet& outlet() const { return *to_; }

  /// Reads what is there and the outlet can take. False at the end.
  bool forward();
  /// The rank has ended: what comes after what is there now is from children of its, who may keep
  /// the pipe open for ever.
  void ends_here();

 private:
  void put_lines();

  Fd from_;
  Outlet* to_;
  std::optional<std::size_t> left_;  ///< to read, once that is known
  std::string prefix_, pending_;
};

}  // namespace chorus
