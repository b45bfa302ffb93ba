#include <cstdint>
#include <optional>

#include "core/base/text.h"
#include "tests/support/catch.h"

using moe::find_invalid_utf8;
using moe::kValidUtf8;

namespace {

// The slow and obvious version: decode by the bit patterns of RFC 3629, then ask whether the code
// point may be written so. Returns the length, or nothing.
std::optional<size_t> decode_length(const std::string& text, size_t at) {
  const auto lead = static_cast<uint8_t>(text[at]);
  const size_t length = lead < 0x80       ? 1
                        : lead >> 5 == 6  ? 2
                        : lead >> 4 == 14 ? 3
                        : lead >> 3 == 30 ? 4
                                          : 0;
  if (length == 0 || at + length > text.size()) {
    return std::nullopt;
  }
  uint32_t code = length == 1 ? lead : lead & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    const auto tail = static_cast<uint8_t>(text[at + i]);
    if (tail >> 6 != 2) {
      return std::nullopt;
    }
    code = code << 6 | (tail & 0x3FU);
  }
  const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_allowed =
      code >= smallest[length] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
  return is_allowed ? std::optional(length) : std::nullopt;
}

size_t slow_find_invalid(const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const auto length = decode_length(text, at);
    if (!length) {
      return at;
    }
    at += *length;
  }
  return kValidUtf8;
}

}  // namespace

TEST_CASE("every lead and second byte is judged as RFC 3629 does", "[base]") {
  const std::string tails[] = {"",         "\x80",         "\xBF",      "\x80\x80",
                               "\xBF\xBF", "\x80\x80\x80", "aaaaaaaaaa"};
  size_t invalid = 0;
  for (int lead = 0; lead < 256; ++lead) {
    for (int second = 0; second < 256; ++second) {
      for (const auto& tail : tails) {
        const std::string text = {static_cast<char>(lead), static_cast<char>(second)};
        const size_t expected = slow_find_invalid(text + tail);
        REQUIRE(find_invalid_utf8(text + tail) == expected);
        invalid += expected != kValidUtf8 ? 1 : 0;
      }
    }
  }
  CHECK(invalid > 1000);  // the comparison saw both kinds
}

TEST_CASE("a broken byte is found at any distance from the start", "[base]") {
  for (size_t before = 0; before < 40; ++before) {
    const std::string ascii(before, 'a');
    CHECK(find_invalid_utf8(ascii) == kValidUtf8);
    CHECK(find_invalid_utf8(ascii + "\xC3\xBC and more text") == kValidUtf8);
    CHECK(find_invalid_utf8(ascii + "\xFF and more text") == before);
    CHECK(find_invalid_utf8(ascii + "\xC3") == before);
  }
}

TEST_CASE("printable text keeps letters and hides what a terminal would obey", "[base]") {
  CHECK(moe::printable("layer.\xC3\xBC") == "layer.\xC3\xBC");
  CHECK(moe::printable("a\x1B[31mb\n\xFF\x7F\xC2\x9B.") == "a?[31mb????.");
  CHECK(moe::printable(std::string(200, 'x'), 5) == "xxxxx...");
  CHECK(moe::printable("\xC3\xBC\xC3\xBC\xC3\xBC", 5) == "\xC3\xBC\xC3\xBC...");
}

TEST_CASE("What is not well-formed becomes one U+FFFD for each beginning of a character",
          "[base]") {
  using moe::replace_invalid_utf8;
  CHECK(replace_invalid_utf8("").empty());
  CHECK(replace_invalid_utf8("a\u00E9\U0001F600") == "a\u00E9\U0001F600");
  CHECK(replace_invalid_utf8("a\xFF\xFE z") == "a\uFFFD\uFFFD z");
  CHECK(replace_invalid_utf8("\xE2\x82") == "\uFFFD");
  CHECK(replace_invalid_utf8("\xE2\x82z") == "\uFFFDz");
  CHECK(replace_invalid_utf8("\xF0\x9F\x98\xC3\xA9") == "\uFFFD\u00E9");
  CHECK(replace_invalid_utf8("\xED\xA0\x80") == "\uFFFD\uFFFD\uFFFD");  // a surrogate
  CHECK(replace_invalid_utf8("\xE0\x80\xC0\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(replace_invalid_utf8("\xF4\x90\x80\x80") == "\uFFFD\uFFFD\uFFFD\uFFFD");
  CHECK(replace_invalid_utf8("\xC3") == "\uFFFD");
}
