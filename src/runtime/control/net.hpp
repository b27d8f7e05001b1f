// Addresses, ids and sockets of the control plane.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/secret.hpp"

namespace chorus::net {

/// An IPv4 or IPv6 address and port.
struct Endpoint {
  sockaddr_storage storage{};

  [[nodiscard]] const sockaddr* address() const {
    return reinterpret_cast<const sockaddr*>(&storage);
  }
  [[nodiscard]] socklen_t size() const {
    return storage.ss_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  }
  [[nodiscard]] std::uint16_t port() const;
  void set_port(std::uint16_t port);
  [[nodiscard]] bool is_loopback() const;
  /// "127.0.0.1", "fe80::1%eth0"; no port, no brackets.
  [[nodiscard]] std::string host() const;
  /// "127.0.0.1:4000", "[::1]:4000"
  [[nodiscard]] std::string text() const;

  /// A numeric address. False for anything else.
  static bool parse(std::string_view host, std::uint16_t port, Endpoint& out);
};

/// What a UniqueId says.
struct Id {
  Endpoint endpoint;
  Secret secret;

  [[nodiscard]] std::string text() const;
  /// Throws InputError saying what an id looks like.
  static Id parse(std::string_view text);
};

/// The address of an interface, by name or as an address of this machine, the first if several are
/// named, separated by commas; empty: IPv4 loopback.
/// IPv4 is preferred where an interface has both. Throws BootstrapError naming the ones there are.
Endpoint local_endpoint(std::string_view interface_name, std::uint16_t port);
/// The address that packets to other machines would carry; loopback if there is none.
Endpoint default_route_endpoint();
/// A host name or address to an address. Throws BootstrapError.
Endpoint resolve(const std::string& host, std::uint16_t port);

[[nodiscard]] Endpoint local_end(int fd);

/// TCP_NODELAY, and a peer whose machine vanished without a word is given up after 15 to 20 s.
void tune(int fd);
/// Bytes that were sent there and that the other end's kernel has acknowledged.
[[nodiscard]] std::uint64_t acknowledged(int fd);

/// A non-blocking socket that is closed in children this process forks: a copy there would keep
/// the connection open after this process died, and nobody would notice its death.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd);  ///< owned from now on; -1: none
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  [[nodiscard]] int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void reset() { const Socket closed = std::move(*this); }

 private:
  int fd_ = -1;
};

/// A non-blocking listener on exactly this address. Throws BootstrapError.
Socket listen_on(const Endpoint& endpoint);

/// How many forks lie between the start of this program and this process; tells a parent's objects
/// from one's own after fork().
[[nodiscard]] int fork_generation();

/// Equal for equal processes of this and other machines and containers.
[[nodiscard]] std::string process_identity();

/// Whether the process of that identity is of this machine, and of the same namespace of processes.
[[nodiscard]] bool sees_processes_of(const std::string& identity);
/// Whether the process of that identity is one that this process can see, and is stopped (SIGSTOP,
/// Ctrl-Z, a debugger).
[[nodiscard]] bool is_stopped(const std::string& identity);
/// Whether the process of that identity runs or is stopped, or has ended; nothing where this
/// process cannot see it.
[[nodiscard]] std::optional<bool> is_running(const std::string& identity);

}  // namespace chorus::net
