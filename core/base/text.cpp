#include "core/base/text.h"

#include <algorithm>
#include <cstring>

namespace moe {

namespace {

// The first character of a text, or the longest prefix of one.
struct Sequence {
  size_t length = 1;
  bool is_whole = false;
};

// Reads the first sequence by Unicode 15, table 3-7.
Sequence read_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {1, true};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {};
  }
  const size_t expected = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;   // below: overlong
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  // above: no characters
  size_t length = 1;
  while (length < expected && length < text.size() && byte(length) >= low && byte(length) <= high) {
    ++length;
    low = 0x80;
    high = 0xBF;
  }
  return {length, length == expected};
}

// Returns the length of the first character of `text`; 0 if it is not well-formed.
size_t valid_length(std::string_view text) {
  const Sequence sequence = read_sequence(text);
  return sequence.is_whole ? sequence.length : 0;
}

// Returns true for controls of writing direction, and separators that may act as line breaks.
bool is_direction_mark(char32_t point) {
  return (point >= 0x200E && point <= 0x200F) || (point >= 0x2028 && point <= 0x202E) ||
         (point >= 0x2066 && point <= 0x2069) || point == 0x061C;
}

// Return the first or last `bytes` bytes of well-formed UTF-8, without a partial character.
std::string_view first_bytes(std::string_view text, size_t bytes) {
  while (bytes > 0 && is_continuation_byte(text[bytes])) {
    --bytes;
  }
  return text.substr(0, bytes);
}
std::string_view last_bytes(std::string_view text, size_t bytes) {
  size_t at = text.size() - bytes;
  while (at < text.size() && is_continuation_byte(text[at])) {
    ++at;
  }
  return text.substr(at);
}

}  // namespace

size_t find_invalid_utf8(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080U;
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight = 0;
    if (text.size() - at >= sizeof(eight)) {  // most files are ASCII: eight bytes at a step
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & kHighBits) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const size_t length = valid_length(text.substr(at));
    if (length == 0) {
      return at;
    }
    at += length;
  }
  return kValidUtf8;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string valid;
  for (size_t bad = find_invalid_utf8(text); bad != kValidUtf8; bad = find_invalid_utf8(text)) {
    valid.append(text.substr(0, bad)).append("\uFFFD");
    text.remove_prefix(bad);
    text.remove_prefix(read_sequence(text).length);
  }
  return valid.append(text);
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = valid_length(text.substr(at));
    const auto lead = static_cast<uint8_t>(text[at]);
    const bool is_c1_control =
        length == 2 && lead == 0xC2 && static_cast<uint8_t>(text[at + 1]) < 0xA0;
    const bool is_shown = length > 0 && lead >= 0x20 && lead != 0x7F && !is_c1_control;
    if (out.size() + (is_shown ? length : 1) > max_bytes) {
      return out + "...";
    }
    out += is_shown ? text.substr(at, length) : std::string_view("?");
    at += length == 0 ? 1 : length;
  }
  return out;
}

char32_t next_code_point(std::string_view text, size_t& at) {
  const auto lead = static_cast<uint8_t>(text[at++]);
  if (lead < 0x80) {
    return lead;
  }
  const int length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  char32_t value = lead & (0x7F >> length);
  for (int i = 1; i < length; ++i) {
    value = value << 6 | (static_cast<uint8_t>(text[at++]) & 0x3F);
  }
  return value;
}

std::string message_text(std::string_view message) {
  constexpr size_t kMaxWordBytes = 200, kHalfBytes = 99, kMaxBytes = 4000;
  const std::string line = terminal_line(message);
  std::string shown;
  for (size_t at = 0; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    const std::string_view word = std::string_view(line).substr(at, end - at);
    if (word.size() > kMaxWordBytes) {
      shown += fmt::format("{}..{}", first_bytes(word, kHalfBytes), last_bytes(word, kHalfBytes));
    } else {
      shown += word;
    }
    shown += end < line.size() ? " " : "";
    at = end + 1;
  }
  return shown.size() <= kMaxBytes ? shown : fmt::format("{}..", first_bytes(shown, kMaxBytes - 2));
}

std::string terminal_json(std::string_view json) {
  std::string out;
  for (size_t at = 0; at < json.size();) {
    const size_t begin = at;
    const char32_t point = next_code_point(json, at);
    if ((point >= 0x7F && point < 0xA0) || is_direction_mark(point)) {
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(point));
    } else {
      out += json.substr(begin, at - begin);
    }
  }
  return out;
}

std::string terminal_text(std::string_view text, bool one_line) {
  std::string out;
  size_t broken = find_invalid_utf8(text);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const auto byte = static_cast<uint8_t>(text[at]);
    const bool is_broken = at == broken;
    const char32_t point = is_broken ? 0 : next_code_point(text, at);
    if (is_broken) {
      const size_t next = find_invalid_utf8(text.substr(++at));
      broken = next == kValidUtf8 ? next : at + next;
    }
    if (byte == '\t' && !one_line) {
      out += '\t';
    } else if (byte == '\n') {
      out += one_line ? "\\n" : "\n";
    } else if (is_broken || byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (point >= 0x80 && point < 0xA0) {
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(point));
    } else if (is_direction_mark(point)) {
      out += fmt::format("\\u{{{:x}}}", static_cast<uint32_t>(point));
    } else {
      out += text.substr(begin, at - begin);
    }
  }
  return out;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (size_t at = text.find(from); at != std::string_view::npos; at = text.find(from)) {
    out.append(text.substr(0, at)).append(to);
    text.remove_prefix(at + from.size());
  }
  return out.append(text);
}

std::string escape(std::string_view text, const std::map<char, std::string>& escapes) {
  std::string out;
  for (const char c : text) {
    const auto entry = escapes.find(c);
    out += entry == escapes.end() ? std::string(1, c) : entry->second;
  }
  return out;
}

std::string group_digits(int64_t number) {
  std::string digits = fmt::format("{}", number);
  const size_t first = number < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > first + 3;) {
    digits.insert(at -= 3, ",");
  }
  return digits;
}

}  // namespace moe
