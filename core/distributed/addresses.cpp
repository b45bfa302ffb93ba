#include "core/distributed/addresses.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>

#include "core/base/error.h"

namespace moe::distributed {
namespace {

struct Address {
  sockaddr_storage bytes{};
  socklen_t length = sizeof(bytes);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&bytes); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&bytes); }
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), fmt::format("{}", port).c_str(), &hints, &found);
  if (error != 0) {
    throw UserError("MASTER_ADDR '{}' is no host that this one knows ({}); use an address", host,
                    gai_strerror(error));
  }
  return Addresses(found);
}

std::string numeric(const Address& address) {
  std::array<char, NI_MAXHOST> text{};
  const bool is_good = getnameinfo(address.get(), address.length, text.data(), text.size(), nullptr,
                                   0, NI_NUMERICHOST) == 0;
  return is_good ? text.data() : "";
}

// A datagram socket sends nothing when it connects, but learns where its packets would leave.
std::optional<Address> source_of(const addrinfo& target) {
  const Descriptor probe(socket(target.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Address own;
  if (connect(probe.get(), target.ai_addr, target.ai_addrlen) != 0 ||
      getsockname(probe.get(), own.get(), &own.length) != 0) {
    return std::nullopt;
  }
  return own;
}

Address with_port(Address address, uint16_t port) {
  if (address.bytes.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&address.bytes)->sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in*>(&address.bytes)->sin_port = htons(port);
  }
  return address;
}

// Not open where this host has no such address. Who ended a moment ago does not keep the port.
Descriptor listen_at(const Address& address, uint16_t port) {
  Descriptor listening(socket(address.bytes.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(listening.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (bind(listening.get(), address.get(), address.length) == 0 &&
      listen(listening.get(), SOMAXCONN) == 0) {
    return listening;
  }
  if (errno == EADDRINUSE) {
    throw UserError(
        "rank 0 cannot listen on port {}, another program has it; set MASTER_PORT to a free one",
        port);
  }
  if (errno == EACCES) {
    throw UserError("rank 0 may not listen on port {}; set MASTER_PORT to one above 1023", port);
  }
  return Descriptor();
}

Address address_of(const addrinfo& entry) {
  Address address;
  std::memcpy(&address.bytes, entry.ai_addr, entry.ai_addrlen);
  address.length = entry.ai_addrlen;
  return address;
}

[[noreturn]] void throw_no_way(const std::string& host) {
  if (host.starts_with("127.") || host == "localhost" || host == "::1") {
    throw UserError(
        "MASTER_ADDR '{}' cannot be reached: the loopback interface of this host is down; bring it "
        "up (ip link set lo up)",
        host);
  }
  throw UserError("no network of this host leads to MASTER_ADDR '{}'; is it right?", host);
}

}  // namespace

std::string address_towards(const std::string& host, uint16_t port) {
  const Addresses found = resolve(host, port);
  for (const addrinfo* next = found.get(); next != nullptr; next = next->ai_next) {
    if (const auto source = source_of(*next)) {
      return numeric(*source);
    }
  }
  throw_no_way(host);
}

Listening listen_towards(const std::string& host, uint16_t port) {
  const Addresses found = resolve(host, port);
  for (const addrinfo* next = found.get(); next != nullptr; next = next->ai_next) {
    Descriptor socket = listen_at(address_of(*next), port);
    if (socket.is_open()) {
      return {std::move(socket), numeric(address_of(*next))};
    }
  }
  for (const addrinfo* next = found.get(); next != nullptr; next = next->ai_next) {
    if (const auto source = source_of(*next)) {
      Descriptor socket = listen_at(with_port(*source, port), port);
      if (socket.is_open()) {
        return {std::move(socket), numeric(*source)};
      }
    }
  }
  throw_no_way(host);
}

}  // namespace moe::distributed
