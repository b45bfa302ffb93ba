#pragma once
// GPT-2's way to write any bytes as visible text: each of the 256 bytes is a character of its own.
// Printable ASCII and most of Latin-1 stand for themselves, the 68 others for U+0100 and what
// follows, in order: a space is U+0120, a line feed U+010A.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace moe::io {

void append_byte_level(std::string& text, uint8_t byte);
std::string to_byte_level(std::string_view bytes);

// The bytes that `text`, well-formed UTF-8, stands for; none where a character stands for no byte.
std::optional<std::string> from_byte_level(std::string_view text);

}  // namespace moe::io
