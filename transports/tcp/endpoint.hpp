// Internet addresses, interfaces and sockets as tcp needs them.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/files/fd.hpp"
#include "chorus/error.hpp"
#include "transports/tcp/wire.hpp"

namespace chorus {

/// This process can open no more sockets: no peer's fault, and nothing that waiting mends.
class DescriptorError : public LinkError {
 public:
  /// `what` there is no socket for; `error`: the errno.
  DescriptorError(const std::string& what, int error);
};

/// An IPv4 or IPv6 address with its port.
struct Endpoint {
  sockaddr_storage storage{};

  /// Of a numeric address; false if `text` is none.
  static bool parse(const std::string& text, Endpoint& endpoint);
  static Endpoint from(const TcpAddress& address);
  static Endpoint from(const TcpRail& rail);
  /// Where `fd` is bound. Throws LinkError.
  static Endpoint bound(int fd);

  void fill(TcpAddress& address) const;
  void fill(TcpRail& rail) const;

  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] socklen_t size() const;
  [[nodiscard]] const sockaddr* address() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  [[nodiscard]] bool loopback() const;
  [[nodiscard]] bool same_ip(const Endpoint& other) const;
  [[nodiscard]] bool same_network(const Endpoint& other, int prefix) const;
  [[nodiscard]] std::uint16_t port() const;
  void set_port(std::uint16_t port);
  [[nodiscard]] std::string ip_text() const;
  [[nodiscard]] std::string text() const;  ///< "10.0.0.1:80", "[::1]:80"
};

/// An interface that has an address of ours.
struct Rail {
  std::string interface;  ///< "eth0"; empty if the address is listed nowhere (most of loopback)
  Endpoint address;
  int prefix = 0;  ///< bits of the address that name its network

  [[nodiscard]] std::string network() const;  ///< "10.1.0.0/16"
};

/// The addresses to listen on and to connect from, the one that every peer is reached from first.
/// `names`, separated by commas: interfaces (an IPv4 address of theirs, else a global IPv6 one) or
/// addresses of this machine; empty means loopback. `others`: where the first is not loopback, all
/// other interfaces follow that are up, have such an address and end at an adapter of their own: no
/// bridges, tunnels, or further addresses over the cable of an earlier one. At most kMaxTcpRails.
/// Throws InputError, listing what there is, if a name means nothing here.
[[nodiscard]] std::vector<Rail> resolve_rails(const std::string& names, bool others);
/// The first of them, and no more.
[[nodiscard]] Endpoint resolve_interface(const std::string& names);

// Connections made by either function use Reno where BBR is the default, as on many hosts: it paces
// streams by what each saw of the path alone (loopback at a third of what Reno reaches, 2.5 against
// 8 GB/s, and an all-to-all of 16 MB over a shared trunk of 200 Mb/s at 85 % of it against 90 %),
// and once it has begun on a connection the kernel paces that for good, by the window over round
// trips that are long over: after a pause a stream of 10 MB/s began at 1 and took 60 ms to get
// there.

/// Listens on exactly that address, on a free port, and if `interface` is not empty to what comes
/// in through it alone, as far as the kernel allows. Throws LinkError.
[[nodiscard]] Fd listen_on(const Endpoint& address, const std::string& interface = {});

/// A socket that is connecting to `peer` from the address of `from`; if `interface` is not empty
/// through that alone, whatever routes say, as far as the kernel allows. Throws LinkError if it can
/// be known at once that it will not.
[[nodiscard]] Fd start_connecting(const Endpoint& from, const Endpoint& peer,
                                  const std::string& interface = {});

/// Sets what every connection wants. `same_kernel`, both ends in one network namespace: Reno in
/// place of any other. Left as it is if the kernel refuses.
void tune(int fd, bool same_kernel);

/// What `fd` sends leaves at so many bytes per second at most; 0: without limit. Left as it is if
/// the kernel refuses.
void limit_rate(int fd, double bytes_per_s);

/// The kernel takes no more from us for `fd` while it holds so many bytes that it has not sent.
void limit_unsent(int fd, int bytes);
/// What the kernel has counted of a connection since it was made.
struct StreamProgress {
  std::uint64_t acknowledged_bytes = 0;
  /// Over the last round trip or so; 0: unknown.
  std::uint64_t last_bytes_per_s = 0;
  bool had_enough_to_send = false;  ///< meanwhile; else the path may be faster
  /// Packets are on their way, or cannot leave, or questions whether the peer has room are
  /// unanswered.
  bool awaits_acknowledgement = false;
  std::int64_t patience_ns = 0;  ///< after which an acknowledgement is overdue, by its round trips
};
/// Nothing if the kernel does not tell (before Linux 4.9).
[[nodiscard]] std::optional<StreamProgress> progress_of(int fd);

/// Bytes given to `fd` that the peer's kernel has not acknowledged; nothing if that cannot be
/// known.
[[nodiscard]] std::optional<std::size_t> unacknowledged(int fd);

/// Acknowledges at once what has been read, and what comes next.
void acknowledge_at_once(int fd);
/// Closing `fd` then drops what it has not sent, in place of going on for minutes.
void close_at_once(int fd);

}  // namespace chorus
