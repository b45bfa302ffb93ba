#include "core/io/tokenizer/byte_level.h"

#include <array>

#include "core/io/tokenizer/unicode.h"

namespace moe::io {

namespace {

constexpr size_t kBytes = 256, kOthers = 68;

struct Tables {
  std::array<char32_t, kBytes> character{};
  std::array<int, kBytes + kOthers> byte{};  // -1: the character stands for none
};

constexpr Tables make_tables() {
  Tables tables;
  for (auto& byte : tables.byte) {
    byte = -1;
  }
  char32_t other = kBytes;
  for (int byte = 0; byte < static_cast<int>(kBytes); ++byte) {
    const bool is_visible = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const char32_t character = is_visible ? static_cast<char32_t>(byte) : other++;
    tables.character[static_cast<size_t>(byte)] = character;
    tables.byte[character] = byte;
  }
  return tables;
}

constexpr Tables kTables = make_tables();

}  // namespace

void append_byte_level(std::string& text, uint8_t byte) {
  const char32_t character = kTables.character[byte];
  if (character < 0x80) {
    text += static_cast<char>(character);
  } else {  // all are below U+0800
    text += static_cast<char>(0xC0 | character >> 6);
    text += static_cast<char>(0x80 | (character & 0x3F));
  }
}

std::string to_byte_level(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  for (const char byte : bytes) {
    append_byte_level(text, static_cast<uint8_t>(byte));
  }
  return text;
}

std::optional<std::string> from_byte_level(std::string_view text) {
  std::string bytes;
  for (size_t at = 0; at < text.size();) {
    const char32_t character = next_code_point(text, at);
    if (character >= kTables.byte.size() || kTables.byte[character] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kTables.byte[character]);
  }
  return bytes;
}

}  // namespace moe::io
