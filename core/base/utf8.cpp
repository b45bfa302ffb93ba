#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace moe {

namespace {

// How the bytes at the start of `text` go: a whole character, or how many of them begin one.
struct Sequence {
  size_t length = 1;
  bool is_whole = false;
};

// Unicode 15, table 3-7.
Sequence read_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return {1, true};
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return {};
  }
  const size_t wanted = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;   // below: overlong
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  // above: surrogates, no code
  size_t length = 1;
  while (length < wanted && length < text.size() && byte(length) >= low && byte(length) <= high) {
    ++length;
    low = 0x80;
    high = 0xBF;
  }
  return {length, length == wanted};
}

// The length of the well-formed sequence at the start of `text`, 0 when there is none.
size_t sequence_length(std::string_view text) {
  const Sequence sequence = read_sequence(text);
  return sequence.is_whole ? sequence.length : 0;
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
    const size_t length = sequence_length(text.substr(at));
    if (length == 0) {
      return at;
    }
    at += length;
  }
  return kValidUtf8;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string mended;
  for (size_t bad = find_invalid_utf8(text); bad != kValidUtf8; bad = find_invalid_utf8(text)) {
    mended.append(text.substr(0, bad)).append("\uFFFD");
    text.remove_prefix(bad);
    text.remove_prefix(read_sequence(text).length);
  }
  return mended.append(text);
}

std::string printable(std::string_view text, size_t max_bytes) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    const size_t length = sequence_length(text.substr(at));
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

}  // namespace moe
