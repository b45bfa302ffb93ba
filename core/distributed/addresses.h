#pragma once
// The addresses of this host on the way to MASTER_ADDR.

#include <cstdint>
#include <string>

#include "core/base/descriptor.h"

namespace moe::distributed {

// The address from which packets to `host` leave: the one that other hosts of the run reach.
// UserError when nothing leads there.
std::string address_towards(const std::string& host, uint16_t port);

// A TCP port of one address of this host: only who reaches that address reaches the port.
struct Listening {
  Descriptor socket;
  std::string address;  // numeric
};

// At `host` itself where that is this host, else (behind a translated address) at the address that
// leads there. UserError: no such host, or another program has the port.
Listening listen_towards(const std::string& host, uint16_t port);

}  // namespace moe::distributed
