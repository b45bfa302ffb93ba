#pragma once
// Names that nobody else has: of a run, of a process in it, of a socket.

#include <string>

namespace moe::distributed {

// 32 hexadecimal digits, 128 random bits of the system.
std::string make_nonce();

// Whether a text that others wrote has that form.
bool is_nonce(const std::string& text);

}  // namespace moe::distributed
