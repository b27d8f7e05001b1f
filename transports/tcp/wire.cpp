#include "transports/tcp/wire.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <vector>

namespace chorus {
namespace {

/// The purpose comes first, so that no proof can be passed off as one of another kind.
Proof prove_about(const Secret& secret, std::string_view purpose, const Nonce& listener,
                  const TcpHello& hello) {
  std::vector<std::byte> message;
  const auto add = [&message](std::span<const std::byte> bytes) {
    message.insert(message.end(), bytes.begin(), bytes.end());
  };
  add(std::as_bytes(std::span(purpose)));
  add(std::as_bytes(std::span(listener)));
  add(std::as_bytes(std::span(&hello, 1)).first(sizeof hello - sizeof hello.proof));
  return prove(secret, message);
}

}  // namespace

std::optional<TcpAddress> TcpAddress::parse(std::span<const std::byte> bytes) {
  TcpAddress address;
  if (bytes.size() > sizeof address) return std::nullopt;
  std::memcpy(&address, bytes.data(), bytes.size());
  if (bytes.size() != address.bytes().size()) return std::nullopt;
  const auto is_address = [](const auto& one) {
    return (one.version == 4 && one.prefix <= 32) || (one.version == 6 && one.prefix <= 128);
  };
  const bool good =
      address.magic == kMagic && is_address(address) && address.num_sockets >= 1 &&
      address.num_sockets <= kMaxTcpSockets && address.num_rails <= address.rails.size() &&
      std::all_of(address.rails.begin(), address.rails.begin() + address.num_rails, is_address);
  return good ? std::optional(address) : std::nullopt;
}

Proof hello_proof(const Secret& secret, const Nonce& listener, const TcpHello& hello) {
  return prove_about(secret, "tcp hello", listener, hello);
}

Proof welcome_proof(const Secret& secret, const Nonce& listener, const TcpHello& hello) {
  return prove_about(secret, "tcp welcome", listener, hello);
}

}  // namespace chorus
