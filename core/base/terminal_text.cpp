#include "core/base/terminal_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "core/base/utf8.h"

namespace moe {

namespace {

// By the first byte of a well-formed sequence.
size_t sequence_length(uint8_t lead) {
  return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

// Of a well-formed sequence.
uint32_t code_point(std::string_view sequence) {
  const auto lead = static_cast<uint8_t>(sequence[0]);
  uint32_t point = sequence.size() == 1 ? lead : lead & (0xFFU >> (sequence.size() + 1));
  for (size_t i = 1; i < sequence.size(); ++i) {
    point = point << 6 | (static_cast<uint8_t>(sequence[i]) & 0x3FU);
  }
  return point;
}

// Marks, embeddings, overrides and isolates of writing direction, and separators that some take for
// line breaks.
bool is_direction_mark(uint32_t point) {
  return (point >= 0x200E && point <= 0x200F) || (point >= 0x2028 && point <= 0x202E) ||
         (point >= 0x2066 && point <= 0x2069) || point == 0x061C;
}

// At most `bytes` of well-formed UTF-8, from its beginning or its end.
std::string_view first_of(std::string_view text, size_t bytes) {
  while (bytes > 0 && is_continuation_byte(text[bytes])) {
    --bytes;
  }
  return text.substr(0, bytes);
}
std::string_view last_of(std::string_view text, size_t bytes) {
  size_t at = text.size() - bytes;
  while (at < text.size() && is_continuation_byte(text[at])) {
    ++at;
  }
  return text.substr(at);
}

}  // namespace

std::string message_text(std::string_view message) {
  constexpr size_t kWord = 200, kKept = 99, kAll = 4000;
  const std::string line = terminal_text(message, /*one_line=*/true);
  std::string shown;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = std::string_view(line).substr(at, end - at);
    if (word.size() > kWord) {
      shown += fmt::format("{}..{}", first_of(word, kKept), last_of(word, kKept));
    } else {
      shown += word;
    }
    shown += end < line.size() ? " " : "";
    at = end + 1;
  }
  return shown.size() <= kAll ? shown : fmt::format("{}..", first_of(shown, kAll - 2));
}

std::string terminal_json(std::string_view json) {
  std::string out;
  for (size_t at = 0; at < json.size();) {
    const std::string_view sequence =
        json.substr(at, sequence_length(static_cast<uint8_t>(json[at])));
    const uint32_t point = code_point(sequence);
    if ((point >= 0x7F && point < 0xA0) || is_direction_mark(point)) {
      out += fmt::format("\\u{:04x}", point);
    } else {
      out += sequence;
    }
    at += sequence.size();
  }
  return out;
}

std::string terminal_text(std::string_view text, bool one_line) {
  std::string out;
  size_t broken = find_invalid_utf8(text);
  for (size_t at = 0; at < text.size();) {
    const auto byte = static_cast<uint8_t>(text[at]);
    const bool is_broken = at == broken;
    const std::string_view sequence = text.substr(at, is_broken ? 1 : sequence_length(byte));
    const uint32_t point = is_broken ? 0 : code_point(sequence);
    if (is_broken) {
      const size_t next = find_invalid_utf8(text.substr(at + 1));
      broken = next == kValidUtf8 ? next : at + 1 + next;
    }
    if (byte == '\t' && !one_line) {
      out += '\t';
    } else if (byte == '\n') {
      out += one_line ? "\\n" : "\n";
    } else if (is_broken || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (point >= 0x80 && point < 0xA0) {
      out += fmt::format("\\x{:02x}", point);
    } else if (is_direction_mark(point)) {
      out += fmt::format("\\u{{{:x}}}", point);
    } else {
      out += sequence;
    }
    at += sequence.size();
  }
  return out;
}

}  // namespace moe
