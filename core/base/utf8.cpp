#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace moe {

namespace {

// The length of the well-formed sequence at the start of `text`, 0 when there is none. Unicode 15,
// table 3-7.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const auto is_tail = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) {
    return 1;
  }
  if (lead >= 0xC2 && lead <= 0xDF) {
    return is_tail(1) ? 2 : 0;
  }
  if (lead >= 0xE0 && lead <= 0xEF) {
    const uint8_t low = lead == 0xE0 ? 0xA0 : 0x80;   // below: overlong
    const uint8_t high = lead == 0xED ? 0x9F : 0xBF;  // above: surrogates
    return is_tail(1, low, high) && is_tail(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const uint8_t low = lead == 0xF0 ? 0x90 : 0x80;   // below: overlong
    const uint8_t high = lead == 0xF4 ? 0x8F : 0xBF;  // above: beyond U+10FFFF
    return is_tail(1, low, high) && is_tail(2) && is_tail(3) ? 4 : 0;
  }
  return 0;
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
