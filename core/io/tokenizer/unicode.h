#pragma once
// Code points of well-formed UTF-8 and the few classes of them that tokenizers ask for. Classes are
// those of utf8proc's tables (Unicode 15): what Unicode assigned later belongs to none.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moe::io {

// The code point that begins at `at`, which is moved behind it. `text` must be well-formed UTF-8
// (core/base/utf8.h checks and mends) and `at` the beginning of one of its characters.
char32_t next_code_point(std::string_view text, size_t& at);

void append_code_point(std::string& text, char32_t code_point);

// The property White_Space.
bool is_white_space(char32_t code_point);
// Decimal digits, numbers written as letters, other numbers (categories Nd, Nl and No).
bool is_numeric(char32_t code_point);
// All punctuation (categories P*), and the symbols of ASCII such as $ and +.
bool is_punctuation(char32_t code_point);

// Where `text` begins and ends without its white space.
size_t skip_white_space(std::string_view text);
size_t end_without_white_space(std::string_view text);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
std::string normal_form(std::string_view text, NormalForm form);

// Each character in its full lower case, without regard to its neighbours.
std::string lower_case(std::string_view text);

}  // namespace moe::io
