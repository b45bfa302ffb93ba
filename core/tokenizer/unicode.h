#pragma once
// Classes and forms of code points for tokenizers, and the two spellings of raw bytes in tokens.
// Classes are those of utf8proc (Unicode 15): code points that were assigned later belong to none.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/text.h"

namespace moe::io {

void append_code_point(std::string& text, char32_t code_point);

bool is_white_space(char32_t code_point);  // property White_Space
bool is_numeric(char32_t code_point);      // categories Nd, Nl and No
bool is_punctuation(char32_t code_point);  // categories P*, and ASCII symbols such as $ and +

size_t skip_white_space(std::string_view text);         // the bytes of leading white space
size_t end_without_white_space(std::string_view text);  // the bytes before trailing white space

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normal_form(std::string_view text, NormalForm form);

// Maps each character to its full lower case, regardless of its neighbours.
std::string lower_case(std::string_view text);

// GPT-2's spelling of bytes: each of the 256 bytes is a visible character. Printable ASCII and most
// of Latin-1 are unchanged; the 68 other bytes are U+0100, U+0101, .. in order: a space is U+0120.
void append_byte_level(std::string& text, uint8_t byte);
std::string to_byte_level(std::string_view bytes);
// Decodes `text`, well-formed UTF-8, to bytes. Returns nothing if a character spells no byte.
std::optional<std::string> from_byte_level(std::string_view text);

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
// Decodes a piece of sentencepiece, where U+2581 is a space and <0xE2> a byte.
std::string piece_bytes(const std::string& piece);

}  // namespace moe::io
