#pragma once
// The classes and forms of code points that tokenizers need, and the two spellings of raw bytes in
// tokens. Classes are those of utf8proc's tables (Unicode 15): code
// points that Unicode assigned later belong to none.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/text.h"

namespace moe::io {

void append_code_point(std::string& text, char32_t code_point);

// The property White_Space.
bool is_white_space(char32_t code_point);
// Decimal digits, numbers written as letters, other numbers (categories Nd, Nl and No).
bool is_numeric(char32_t code_point);
// All punctuation (categories P*), and the symbols of ASCII such as $ and +.
bool is_punctuation(char32_t code_point);

// Returns the number of bytes of leading white space, and the end without trailing white space.
size_t skip_white_space(std::string_view text);
size_t end_without_white_space(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normal_form(std::string_view text, NormalForm form);

// Returns each character in its full lower case, without regard to its neighbours.
std::string lower_case(std::string_view text);

// GPT-2's spelling of bytes: each of the 256 bytes is a visible character. Printable ASCII and most
// of Latin-1 are unchanged; the 68 other bytes are U+0100 and up, in order: a space is U+0120, a
// line feed U+010A.
void append_byte_level(std::string& text, uint8_t byte);
std::string to_byte_level(std::string_view bytes);
// Returns the bytes that `text`, well-formed UTF-8, spells; nothing if a character spells no byte.
std::optional<std::string> from_byte_level(std::string_view text);

// sentencepiece's spelling: U+2581 is a space, <0xE2> a byte.
inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
std::string piece_bytes(const std::string& piece);

}  // namespace moe::io
