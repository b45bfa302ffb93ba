#include "core/io/tokenizer/decoders.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "core/io/tokenizer/byte_level.h"
#include "core/io/tokenizer/normalizers.h"
#include "core/io/tokenizer/stage.h"
#include "core/io/tokenizer/unicode.h"

namespace moe::io {

namespace {

using Texts = std::vector<std::string>;

std::string joined(const Texts& texts) {
  std::string all;
  for (const auto& text : texts) {
    all += text;
  }
  return all;
}

size_t bytes_of_texts(const Texts& texts) {
  return std::accumulate(texts.begin(), texts.end(), size_t{0},
                         [](size_t sum, const std::string& text) { return sum + text.size(); });
}

// <0x0A>, in digits of either case.
std::optional<char> byte_of(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with('>')) {
    return std::nullopt;
  }
  const size_t first = text[3] == '+' ? 4 : 3;  // the library takes a sign
  uint8_t byte = 0;
  const char* end = text.data() + 5;
  const auto read = std::from_chars(text.data() + first, end, byte, 16);
  return read.ec == std::errc() && read.ptr == end ? std::optional<char>(byte) : std::nullopt;
}

// A run of bytes is text if all of them are UTF-8 together, else a U+FFFD each.
Decoder read_byte_fallback(const Json&, const std::string&) {
  return [](const Texts& texts) {
    Texts decoded;
    std::string bytes;
    const auto end_bytes = [&] {
      if (find_invalid_utf8(bytes) == kValidUtf8) {
        decoded.push_back(bytes);
      } else {
        decoded.insert(decoded.end(), bytes.size(), "\uFFFD");
      }
      bytes.clear();
    };
    for (const auto& text : texts) {
      if (const auto byte = byte_of(text)) {
        bytes += *byte;
        continue;
      }
      if (!bytes.empty()) {
        end_bytes();
      }
      decoded.push_back(text);
    }
    if (!bytes.empty()) {
      end_bytes();
    }
    return decoded;
  };
}

Decoder read_byte_level_decoder(const Json&, const std::string&) { return characters_as_bytes(); }

Decoder read_fuse(const Json&, const std::string&) {
  return [](const Texts& texts) { return Texts{joined(texts)}; };
}

// With a space put before the text when it was encoded, marks of the first token are none.
Decoder read_metaspace_decoder(const Json& json, const std::string& where) {
  std::string mark;
  append_code_point(mark, read_character(json, "replacement", where));
  const bool prepends = read_prepend_scheme(json, where) != PrependScheme::kNever;
  return [mark, prepends](Texts texts) {
    for (size_t i = 0; i < texts.size(); ++i) {
      const std::string_view space = i == 0 && prepends ? "" : " ";
      std::string text;
      std::string_view rest = texts[i];
      for (size_t at = rest.find(mark); at != std::string_view::npos; at = rest.find(mark)) {
        text.append(rest.substr(0, at)).append(space);
        rest.remove_prefix(at + mark.size());
      }
      texts[i] = text.append(rest);
    }
    return texts;
  };
}

Decoder read_replace_decoder(const Json& json, const std::string& where) {
  return [replace = read_normalizer(json, where.substr(0, where.rfind(' ')))](Texts texts) {
    std::transform(texts.begin(), texts.end(), texts.begin(), replace);
    return texts;
  };
}

// Up to `start` times the character at the beginning of every text, up to `stop` times at its end.
Decoder read_strip_decoder(const Json& json, const std::string& where) {
  std::string content;
  append_code_point(content, read_character(json, "content", where));
  const int64_t start = get_int(json, "start", where), stop = get_int(json, "stop", where);
  return [content, start, stop](Texts texts) {
    for (auto& text : texts) {
      std::string_view rest = text;
      for (int64_t i = 0; i < start && rest.starts_with(content); ++i) {
        rest.remove_prefix(content.size());
      }
      for (int64_t i = 0; i < stop && rest.ends_with(content); ++i) {
        rest.remove_suffix(content.size());
      }
      text = std::string(rest);
    }
    return texts;
  };
}

Decoder read_list_of_decoders(const Json& json, const std::string& where) {
  return [parts = read_sequence(json, "decoders", where, read_decoder), where](Texts texts) {
    const size_t max_bytes = max_stage_bytes(bytes_of_texts(texts));
    for (const auto& part : parts) {
      texts = part(std::move(texts));
      check_growth(bytes_of_texts(texts), max_bytes, where);
    }
    return texts;
  };
}

constexpr StageType<Decoder> kDecoderTypes[] = {
    {"ByteLevel", read_byte_level_decoder},
    {"ByteFallback", read_byte_fallback},
    {"Fuse", read_fuse},
    {"Metaspace", read_metaspace_decoder},
    {"Replace", read_replace_decoder},
    {"Strip", read_strip_decoder},
    {"Sequence", read_list_of_decoders},
};

}  // namespace

Decoder read_decoder(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return [](Texts texts) {
      for (size_t i = 1; i < texts.size(); ++i) {
        texts[i].insert(0, " ");
      }
      return texts;
    };
  }
  return read_stage<Decoder>(json, where, kDecoderTypes);
}

Decoder characters_as_bytes() {
  return [](const Texts& texts) {
    std::string bytes;
    for (const auto& text : texts) {
      bytes += from_byte_level(text).value_or(text);
    }
    return Texts{replace_invalid_utf8(bytes)};
  };
}

}  // namespace moe::io
