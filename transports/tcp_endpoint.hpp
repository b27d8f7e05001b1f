// Internet addresses, interfaces and sockets as tcp needs them.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/fd.hpp"
#include "chorus/error.hpp"
#include "transports/tcp_wire.hpp"

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
  /// Where `fd` is bound. Throws LinkError.
  static Endpoint bound(int fd);

  void fill(TcpAddress& address) const;

  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] socklen_t size() const;
  [[nodiscard]] const sockaddr* address() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  [[nodiscard]] bool loopback() const;
  [[nodiscard]] bool same_ip(const Endpoint& other) const;
  [[nodiscard]] std::uint16_t port() const;
  void set_port(std::uint16_t port);
  [[nodiscard]] std::string ip_text() const;
  [[nodiscard]] std::string text() const;  ///< "10.0.0.1:80", "[::1]:80"
};

/// The address to listen on and to connect from: `name` is an interface (its IPv4 address, else a
/// global IPv6 one) or one of this machine's addresses; empty means loopback. Throws InputError
/// listing what there is.
[[nodiscard]] Endpoint resolve_interface(const std::string& name);

/// Listens on exactly that address, on a free port. Throws LinkError.
[[nodiscard]] Fd listen_on(const Endpoint& address);

/// A socket that is connecting to `peer` from the address of `from`. Throws LinkError if it can be
/// known at once that it will not.
[[nodiscard]] Fd start_connecting(const Endpoint& from, const Endpoint& peer);

/// Sets what every connection wants. Reno takes the place of BBR, the default of many hosts, which
/// paces streams by what each saw of the path alone: loopback at a third of what Reno reaches (2.5
/// against 8 GB/s), and an all-to-all of 16 MB over a shared trunk of 200 Mb/s at 85 % of it
/// against 90 %. `same_kernel`, both ends in one network namespace: Reno in place of any other.
/// Left as it is if the kernel refuses.
void tune(int fd, bool same_kernel);

/// What `fd` sends leaves at so many bytes per second at most; 0: without limit. Left as it is if
/// the kernel refuses.
void limit_rate(int fd, double bytes_per_s);

}  // namespace chorus
