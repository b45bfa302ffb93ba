#pragma once
// Bytes that claim to be text. Files are hostile until read, and what they say must neither break a
// parser nor, quoted in an error, the user's terminal.

#include <cstddef>
#include <string>
#include <string_view>

namespace moe {

inline constexpr size_t kValidUtf8 = std::string_view::npos;

// The offset of the first byte that does not belong to well-formed UTF-8 (Unicode 15, table 3-7: no
// overlong forms, no surrogates, nothing above U+10FFFF), or kValidUtf8.
size_t find_invalid_utf8(std::string_view text);

// Whether a character of well-formed UTF-8 goes on with this byte.
constexpr bool is_continuation_byte(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0U) == 0x80U;
}

// `text` with U+FFFD in place of what is not well-formed: one for each longest run of bytes that
// begins a character, else one a byte (Unicode 15, section 3.9, "maximal subparts").
std::string replace_invalid_utf8(std::string_view text);

// `text` fit for an error message: control characters and broken UTF-8 become '?', what exceeds
// `max_bytes` becomes "...".
std::string printable(std::string_view text, size_t max_bytes = 120);

}  // namespace moe
