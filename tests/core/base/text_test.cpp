#include "core/base/text.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/sha256.h"
#include "tests/support/catch.h"

namespace moe {
namespace {

// Returns the length of the character at `at`, decoded by the bit patterns of RFC 3629; nothing if
// it is invalid.
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

TEST_CASE("UTF-8 is accepted as RFC 3629 defines it, for all pairs of first bytes", "[base]") {
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
  CHECK(invalid > 1000);                            // both outcomes occurred
  for (size_t before = 0; before < 40; ++before) {  // any alignment of the fast path
    const std::string ascii(before, 'a');
    CHECK(find_invalid_utf8(ascii + "\xC3\xBC and more text") == kValidUtf8);
    CHECK(find_invalid_utf8(ascii + "\xFF and more text") == before);
    CHECK(find_invalid_utf8(ascii + "\xC3") == before);
  }
}

TEST_CASE("Invalid UTF-8 becomes one U+FFFD for each beginning of a character", "[base]") {
  for (const auto& [text, expected] : {std::pair("", ""),
                                       {"a\u00E9\U0001F600", "a\u00E9\U0001F600"},
                                       {"a\xFF\xFE z", "a\uFFFD\uFFFD z"},
                                       {"\xE2\x82", "\uFFFD"},
                                       {"\xE2\x82z", "\uFFFDz"},
                                       {"\xF0\x9F\x98\xC3\xA9", "\uFFFD\u00E9"},
                                       {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},  // a surrogate
                                       {"\xE0\x80\xC0\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
                                       {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
                                       {"\xC3", "\uFFFD"}}) {
    CHECK(moe::replace_invalid_utf8(text) == expected);
  }
}

TEST_CASE("Control characters and invalid bytes are escaped for a terminal", "[base]") {
  const std::string plain = "layer \xC3\xBC, \xE6\xBC\xA2, \xF0\x9F\x98\x80, 5 %";
  CHECK(moe::terminal_text(plain) == plain);
  CHECK(moe::terminal_text(plain, true) == plain);
  CHECK(moe::terminal_text("a\tb\nc\r") == "a\tb\nc\\x0d");
  CHECK(moe::terminal_text("a\tb\nc\r", true) == "a\\x09b\\nc\\x0d");
  CHECK(moe::terminal_text("\x1B[31m\x7F\x9B\xC2\x9B.") == "\\x1b[31m\\x7f\\x9b\\x9b.");
  CHECK(moe::terminal_text("x\u202Ey\u2066") == "x\\u{202e}y\\u{2066}");
  CHECK(moe::terminal_text(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(moe::printable("layer.\xC3\xBC") == "layer.\xC3\xBC");
  CHECK(moe::printable("a\x1B[31mb\n\xFF\x7F\xC2\x9B.") == "a?[31mb????.");
  CHECK(moe::printable(std::string(200, 'x'), 5) == "xxxxx...");
  CHECK(moe::printable("\xC3\xBC\xC3\xBC\xC3\xBC", 5) == "\xC3\xBC\xC3\xBC...");
}

TEST_CASE("JSON for a terminal is the same text with control characters escaped", "[base]") {
  const std::string text = "a\x1b[31m\x7f\u009b\u202e\u00fc\n";
  const std::string shown = moe::json_text(text);
  CHECK(shown == "\"a\\u001b[31m\\u007f\\u009b\\u202e\u00fc\\n\"");
  CHECK(moe::Json::parse(shown) == text);
  CHECK(moe::json_text(std::string("broken \xff")) == "\"broken \ufffd\"");
}

TEST_CASE("A message is one line of at most 4,000 bytes, and its words are shortened", "[base]") {
  CHECK(moe::message_text("a\nb \x1b") == "a\\nb \\x1b");
  const std::string longest(200, 'x'), longer(201, 'x');
  const std::string shortened = longer.substr(0, 99) + ".." + longer.substr(0, 99);
  CHECK(moe::message_text(longest + " is") == longest + " is");
  CHECK(moe::message_text("of " + longer + " and " + longer) ==
        "of " + shortened + " and " + shortened);
  std::string letters, words;
  while (letters.size() < 400) {
    letters += "\u00e4\u20ac";  // 2 and 3 bytes: byte 99 is inside a character
  }
  const std::string cut = moe::message_text(letters);
  CHECK(cut.size() <= 200);
  CHECK(cut.find("\\x") == std::string::npos);
  CHECK(moe::message_text(cut) == cut);  // well-formed
  while (words.size() < 9000) {
    words += "word ";
  }
  CHECK(moe::message_text(words).size() == 4000);
}

TEST_CASE("A number is printed with a comma between thousands", "[base]") {
  using moe::group_digits;
  CHECK((group_digits(0) == "0" && group_digits(999) == "999" && group_digits(1000) == "1,000"));
  CHECK((group_digits(-1234567) == "-1,234,567" && group_digits(-999) == "-999"));
}

TEST_CASE("SHA-256 gives the digests of the examples of FIPS 180-4", "[base][sha256]") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 does not depend on the pieces of its input", "[base][sha256]") {
  std::string text(1000, '\0');
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = static_cast<char>(i * 7);
  }
  for (const size_t step : std::vector<size_t>{1, 55, 56, 63, 64, 65, 999}) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += step) {
      hash.update(std::string_view(text).substr(at, step));
    }
    CHECK(hash.hex() == sha256_hex(text));
  }
}

}  // namespace
}  // namespace moe
