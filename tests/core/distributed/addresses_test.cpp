#include "core/distributed/addresses.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/support/catch.h"
#include "tests/support/matchers.h"

using namespace moe::distributed;
using moe::Descriptor;
using moe::test::contains_text;

namespace {

// Where it listens.
sockaddr_in own_address(const Descriptor& socket) {
  sockaddr_in address{};
  socklen_t length = sizeof(address);
  REQUIRE(getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  return address;
}

}  // namespace

TEST_CASE("the address towards a host is that of the way there") {
  CHECK(address_towards("127.0.0.1", 29500) == "127.0.0.1");
  CHECK_THROWS_WITH(address_towards("no.such.host.invalid", 1),
                    contains_text("MASTER_ADDR 'no.such.host.invalid' is no host"));
}

TEST_CASE("a port is opened at the address that was named and at no other") {
  const Listening first = listen_towards("127.0.0.1", 0);
  const sockaddr_in address = own_address(first.socket);
  CHECK((address.sin_family == AF_INET && address.sin_addr.s_addr == htonl(INADDR_LOOPBACK)));
  CHECK(first.address == "127.0.0.1");
  // Names of this host may mean another address of the loopback.
  const uint16_t port = ntohs(address.sin_port);
  const Listening second = listen_towards("127.0.0.2", port);
  CHECK(second.address == "127.0.0.2");
  CHECK(own_address(second.socket).sin_addr.s_addr == htonl(INADDR_LOOPBACK + 1));
  CHECK_THROWS_WITH(listen_towards("127.0.0.1", port),
                    contains_text("rank 0 cannot listen on port " + std::to_string(port)));
  CHECK_THROWS_WITH(listen_towards("no.such.host.invalid", 1), contains_text("is no host"));
}
