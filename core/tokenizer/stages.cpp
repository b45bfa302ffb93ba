#include "core/tokenizer/stages.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>
#include <span>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/patterns.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace {

// A type of a stage: its name and its reader.
template <typename Part>
struct StageType {
  const char* name;
  Part (*read)(const Json& json, const std::string& where);
};

// Reads the stage that "type" names.
template <typename Part>
Part read_stage(const Json& json, const std::string& where,
                std::span<const StageType<Part>> types) {
  const std::string type = get_string(json, "type", where);
  std::vector<const char*> known;
  for (const auto& candidate : types) {
    if (type == candidate.name) {
      return candidate.read(json, where + " " + type);
    }
    known.push_back(candidate.name);
  }
  throw UserError("{}: the type '{}' is not supported; supported: {}", where, printable(type),
                  fmt::join(known, ", "));
}

// Reads the stages that a Sequence lists under `key`.
template <typename Part>
std::vector<Part> read_sequence(const Json& json, const std::string& key, const std::string& where,
                                Part (*read)(const Json&, const std::string&)) {
  const auto list = json.find(key);
  USER_ERROR_IF(list == json.end() || !list->is_array(), "{}: '{}' must be a list", where, key);
  std::vector<Part> parts;
  for (const auto& part : *list) {
    parts.push_back(read(part, where));
  }
  return parts;
}

// Returns the maximum size of a text of `bytes` bytes after any stage. The largest growth in
// published tokenizers is 11-fold in NFKC (U+FDFA), then 3-fold for a space that becomes U+2581.
// Without a limit, 40 stages that double a text exhaust memory.
constexpr size_t max_stage_bytes(size_t bytes) { return 64 * bytes + 1024; }

// Throws UserError if `bytes`, the size of a stage's output, exceeds `max_bytes`.
void check_growth(size_t bytes, size_t max_bytes, const std::string& where) {
  USER_ERROR_IF(bytes > max_bytes,
                "{}: the text grows to more than {} bytes, 64 times its size, which no published "
                "tokenizer does; fetch the file again",
                where, max_bytes);
}

// Reads {"pattern": {"String": TEXT}} or {"pattern": {"Regex": EXPRESSION}}.
Pattern read_pattern(const Json& json, const std::string& where) {
  const auto pattern = json.find("pattern");
  USER_ERROR_IF(pattern == json.end() || !pattern->is_object() || pattern->size() != 1,
                "{}: 'pattern' must be {{\"String\": text}} or {{\"Regex\": expression}}", where);
  return pattern->contains("String") ? literal_pattern(get_string(*pattern, "String", where), where)
                                     : regex_pattern(get_string(*pattern, "Regex", where), where);
}

// Reads the value of `key`, which must be one character.
std::string read_character(const Json& json, const std::string& key, const std::string& where) {
  std::string text = get_string(json, key, where);
  size_t end = 0;
  if (!text.empty()) {
    next_code_point(text, end);
  }
  USER_ERROR_IF(text.empty() || end != text.size(), "{}: '{}' must be one character, is '{}'",
                where, key, printable(text));
  return text;
}

// The words to which Metaspace prepends a space; kFirst: the first word of a text.
enum class PrependScheme { kAlways, kFirst, kNever };

// Reads "prepend_scheme" and the older setting "add_prefix_space".
PrependScheme read_prepend_scheme(const Json& json, const std::string& where) {
  const std::string scheme = get_string(json, "prepend_scheme", where, "");
  USER_ERROR_IF(!scheme.empty() && scheme != "always" && scheme != "first" && scheme != "never",
                "{}: 'prepend_scheme' is '{}'; known: always, first, never", where,
                printable(scheme));
  if (!get_bool(json, "add_prefix_space", where, true)) {
    USER_ERROR_IF(!scheme.empty() && scheme != "never",
                  "{}: 'add_prefix_space' is false but 'prepend_scheme' is '{}'; keep one", where,
                  scheme);
    return PrependScheme::kNever;
  }
  return scheme == "first"   ? PrependScheme::kFirst
         : scheme == "never" ? PrependScheme::kNever
                             : PrependScheme::kAlways;
}

// Normalizers.

// A normalizer that throws UserError if its output would have more than `max_bytes` bytes.
using LimitedNormalizer = std::function<std::string(std::string text, size_t max_bytes)>;

LimitedNormalizer read_limited_normalizer(const Json& json, const std::string& where);

template <NormalForm form>
LimitedNormalizer read_form(const Json&, const std::string& where) {
  return [where](const std::string& text, size_t max_bytes) {
    std::string normal = normal_form(text, form);
    check_growth(normal.size(), max_bytes, where);
    return normal;
  };
}

LimitedNormalizer read_prepend(const Json& json, const std::string& where) {
  return [prefix = get_string(json, "prepend", where), where](std::string text, size_t max_bytes) {
    if (text.empty()) {
      return text;
    }
    check_growth(prefix.size() + text.size(), max_bytes, where);
    return prefix + text;
  };
}

LimitedNormalizer read_replace_normalizer(const Json& json, const std::string& where) {
  return [pattern = read_pattern(json, where), content = get_string(json, "content", where), where](
             const std::string& text, size_t max_bytes) {
    std::string replaced;
    for (const auto& section : pattern(text)) {
      const std::string_view part =
          section.is_match
              ? std::string_view(content)
              : std::string_view(text).substr(section.begin, section.end - section.begin);
      check_growth(replaced.size() + part.size(), max_bytes, where);
      replaced += part;
    }
    return replaced;
  };
}

LimitedNormalizer read_strip_normalizer(const Json& json, const std::string& where) {
  return [left = get_bool(json, "strip_left", where, false),
          right = get_bool(json, "strip_right", where, false)](const std::string& text, size_t) {
    std::string_view rest = text;
    rest.remove_prefix(left ? skip_white_space(rest) : 0);
    return std::string(right ? rest.substr(0, end_without_white_space(rest)) : rest);
  };
}

LimitedNormalizer read_lowercase(const Json&, const std::string& where) {
  return [where](const std::string& text, size_t max_bytes) {
    std::string lower = lower_case(text);
    check_growth(lower.size(), max_bytes, where);
    return lower;
  };
}

LimitedNormalizer read_list_of_normalizers(const Json& json, const std::string& where) {
  return [parts = read_sequence(json, "normalizers", where, read_limited_normalizer)](
             std::string text, size_t max_bytes) {
    for (const auto& part : parts) {
      text = part(std::move(text), max_bytes);
    }
    return text;
  };
}

constexpr StageType<LimitedNormalizer> kNormalizerTypes[] = {
    {"NFC", read_form<NormalForm::kNfc>},
    {"NFD", read_form<NormalForm::kNfd>},
    {"NFKC", read_form<NormalForm::kNfkc>},
    {"NFKD", read_form<NormalForm::kNfkd>},
    {"Prepend", read_prepend},
    {"Replace", read_replace_normalizer},
    {"Strip", read_strip_normalizer},
    {"Lowercase", read_lowercase},
    {"Sequence", read_list_of_normalizers},
};

LimitedNormalizer read_limited_normalizer(const Json& json, const std::string& where) {
  return read_stage<LimitedNormalizer>(json, where, kNormalizerTypes);
}

// Pre-tokenizers.

// GPT-2's expression, which ByteLevel uses.
constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// Expression of Whitespace. In the engine that the library uses for it, \w includes the joiners.
constexpr const char* kWordsAndSymbols =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)"
    R"(|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

size_t total_bytes(const Words& words) {
  return std::transform_reduce(words.list.begin(), words.list.end(), size_t{0}, std::plus(),
                               [](const Word& word) { return word.text.size(); });
}

PreTokenizer split_by(Pattern pattern, Behavior behavior, bool inverted = false) {
  return [pattern = std::move(pattern), behavior, inverted](Words& words) {
    std::vector<Word> parts;
    parts.reserve(words.list.size());
    for (const auto& word : words.list) {
      Sections sections = pattern(word.text);
      for (auto& section : sections) {
        section.is_match = section.is_match != inverted;
      }
      for (const auto& part : apply_behavior(sections, behavior)) {
        if (part.begin < part.end) {
          parts.push_back({word.text.substr(part.begin, part.end - part.begin),
                           word.begins_text && part.begin == 0});
        }
      }
    }
    words.list = std::move(parts);
  };
}

PreTokenizer read_byte_level_pre_tokenizer(const Json& json, const std::string& where) {
  const bool adds_space = get_bool(json, "add_prefix_space", where, true);
  const PreTokenizer split =
      get_bool(json, "use_regex", where, true) ? split_isolated(kGpt2Split, where) : [](Words&) {};
  return [adds_space, split, spell_bytes = bytes_as_characters()](Words& words) {
    for (auto& word : words.list) {
      if (adds_space && !word.text.starts_with(' ')) {
        word.text = words.written.emplace_back(" ").append(word.text);
      }
    }
    split(words);
    spell_bytes(words);
  };
}

PreTokenizer read_split(const Json& json, const std::string& where) {
  return split_by(read_pattern(json, where),
                  parse_behavior(get_string(json, "behavior", where), where),
                  get_bool(json, "invert", where, false));
}

PreTokenizer read_digits(const Json& json, const std::string& where) {
  return split_by(class_pattern(is_numeric), get_bool(json, "individual_digits", where, false)
                                                 ? Behavior::kIsolated
                                                 : Behavior::kContiguous);
}

PreTokenizer read_punctuation(const Json& json, const std::string& where) {
  return split_by(class_pattern(is_punctuation),
                  parse_behavior(get_string(json, "behavior", where, "Isolated"), where));
}

PreTokenizer read_whitespace(const Json&, const std::string& where) {
  return split_by(regex_pattern(kWordsAndSymbols, where), Behavior::kRemoved, /*inverted=*/true);
}

PreTokenizer read_metaspace_pre_tokenizer(const Json& json, const std::string& where) {
  const std::string mark = read_character(json, "replacement", where);
  const PrependScheme scheme = read_prepend_scheme(json, where);
  const PreTokenizer split = get_bool(json, "split", where, true)
                                 ? split_by(literal_pattern(mark, where), Behavior::kMergedWithNext)
                                 : [](Words&) {};
  return [mark, scheme, split](Words& words) {
    for (auto& word : words.list) {
      std::string marked = replace_all(word.text, " ", mark);
      const bool prepends =
          scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && word.begins_text);
      if (prepends && !marked.empty() && !marked.starts_with(mark)) {
        marked.insert(0, mark);
      }
      word.text = words.written.emplace_back(std::move(marked));
    }
    split(words);
  };
}

PreTokenizer read_list_of_pre_tokenizers(const Json& json, const std::string& where) {
  return [parts = read_sequence(json, "pretokenizers", where, read_pre_tokenizer),
          where](Words& words) {
    const size_t max_bytes = max_stage_bytes(total_bytes(words));
    for (const auto& part : parts) {
      part(words);
      check_growth(total_bytes(words), max_bytes, where);
    }
  };
}

constexpr StageType<PreTokenizer> kPreTokenizerTypes[] = {
    {"ByteLevel", read_byte_level_pre_tokenizer},
    {"Split", read_split},
    {"Digits", read_digits},
    {"Metaspace", read_metaspace_pre_tokenizer},
    {"Punctuation", read_punctuation},
    {"Whitespace", read_whitespace},
    {"WhitespaceSplit",
     [](const Json&, const std::string&) {
       return split_by(class_pattern(is_white_space), Behavior::kRemoved);
     }},
    {"Sequence", read_list_of_pre_tokenizers},
};

// Post-processors.

SpecialTokens read_template(const Json& json, const std::string& where) {
  const auto pieces = json.find("single");
  USER_ERROR_IF(pieces == json.end() || !pieces->is_array(), "{}: 'single' must be a list", where);
  SpecialTokens special;
  bool has_text = false;
  for (const auto& piece : *pieces) {
    if (piece.is_object() && piece.contains("SpecialToken")) {
      const std::string name = get_string(piece["SpecialToken"], "id", where);
      const auto tokens = json.find("special_tokens");
      USER_ERROR_IF(tokens == json.end() || !tokens->is_object() || !tokens->contains(name),
                    "{}: 'special_tokens' has no '{}'", where, printable(name));
      auto& side = has_text ? special.after : special.before;
      const auto ids = get_ints(tokens->at(name), "ids", where);
      side.insert(side.end(), ids.begin(), ids.end());
    } else if (piece.is_object() && piece.contains("Sequence") && !has_text &&
               get_string(piece["Sequence"], "id", where) == "A") {
      has_text = true;
    } else {
      throw UserError(
          "{}: 'single' must have the sequence A once, and only special tokens around it", where);
    }
  }
  USER_ERROR_IF(!has_text, "{}: 'single' must have the sequence A once", where);
  return special;
}

// Later processors add their tokens outside those of earlier ones.
SpecialTokens read_list_of_post_processors(const Json& json, const std::string& where) {
  SpecialTokens all;
  for (const auto& part : read_sequence(json, "processors", where, read_post_processor)) {
    all.before.insert(all.before.begin(), part.before.begin(), part.before.end());
    all.after.insert(all.after.end(), part.after.begin(), part.after.end());
  }
  return all;
}

constexpr StageType<SpecialTokens> kPostProcessorTypes[] = {
    {"TemplateProcessing", read_template},
    {"ByteLevel", [](const Json&, const std::string&) { return SpecialTokens(); }},
    {"Sequence", read_list_of_post_processors},
};

// Decoders.

using Texts = std::vector<std::string>;

size_t total_bytes(const Texts& texts) {
  return std::transform_reduce(texts.begin(), texts.end(), size_t{0}, std::plus(),
                               [](const std::string& text) { return text.size(); });
}

// Parses <0x0A>, with digits of either case.
std::optional<char> parse_byte(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || !text.ends_with('>')) {
    return std::nullopt;
  }
  const size_t first = text[3] == '+' ? 4 : 3;  // the library accepts a sign
  uint8_t byte = 0;
  const char* end = text.data() + 5;
  const auto [stop, error] = std::from_chars(text.data() + first, end, byte, 16);
  return error == std::errc() && stop == end ? std::optional<char>(byte) : std::nullopt;
}

// Decodes a run of bytes to a text if it is UTF-8 as a whole, else each byte to U+FFFD.
Decoder read_byte_fallback(const Json&, const std::string&) {
  return [](const Texts& texts) {
    Texts decoded;
    std::string bytes;
    const auto end_bytes = [&] {
      if (bytes.empty()) {
        return;
      }
      if (find_invalid_utf8(bytes) == kValidUtf8) {
        decoded.push_back(bytes);
      } else {
        decoded.insert(decoded.end(), bytes.size(), "\uFFFD");
      }
      bytes.clear();
    };
    for (const auto& text : texts) {
      if (const auto byte = parse_byte(text)) {
        bytes += *byte;
        continue;
      }
      end_bytes();
      decoded.push_back(text);
    }
    end_bytes();
    return decoded;
  };
}

// Replaces marks by spaces. Removes those of the first token if encoding prepends a space.
Decoder read_metaspace_decoder(const Json& json, const std::string& where) {
  const std::string mark = read_character(json, "replacement", where);
  const bool prepends = read_prepend_scheme(json, where) != PrependScheme::kNever;
  return [mark, prepends](Texts texts) {
    for (size_t i = 0; i < texts.size(); ++i) {
      texts[i] = replace_all(texts[i], mark, i == 0 && prepends ? "" : " ");
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

// Removes "content" up to `start` times from the beginning and up to `stop` times from the end.
Decoder read_strip_decoder(const Json& json, const std::string& where) {
  const std::string content = read_character(json, "content", where);
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
    const size_t max_bytes = max_stage_bytes(total_bytes(texts));
    for (const auto& part : parts) {
      texts = part(std::move(texts));
      check_growth(total_bytes(texts), max_bytes, where);
    }
    return texts;
  };
}

constexpr StageType<Decoder> kDecoderTypes[] = {
    {"ByteLevel", [](const Json&, const std::string&) { return characters_as_bytes(); }},
    {"ByteFallback", read_byte_fallback},
    {"Fuse",
     [](const Json&, const std::string&) -> Decoder {
       return [](const Texts& texts) { return Texts{fmt::format("{}", fmt::join(texts, ""))}; };
     }},
    {"Metaspace", read_metaspace_decoder},
    {"Replace", read_replace_decoder},
    {"Strip", read_strip_decoder},
    {"Sequence", read_list_of_decoders},
};

}  // namespace

Normalizer read_normalizer(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return [](std::string text) { return text; };
  }
  return [normalize = read_limited_normalizer(json, where)](std::string text) {
    const size_t max_bytes = max_stage_bytes(text.size());
    return normalize(std::move(text), max_bytes);
  };
}

PreTokenizer read_pre_tokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return [](Words&) {};
  }
  return read_stage<PreTokenizer>(json, where, kPreTokenizerTypes);
}

PreTokenizer split_isolated(const std::string& expression, const std::string& where) {
  return split_by(regex_pattern(expression, where), Behavior::kIsolated);
}

PreTokenizer bytes_as_characters() {
  return [](Words& words) {
    std::string& written = words.written.emplace_back();
    // A character that spells a byte has one or two bytes, so the string does not reallocate.
    written.reserve(total_bytes(words) * 2);
    for (auto& word : words.list) {
      const size_t begin = written.size();
      for (const char byte : word.text) {
        append_byte_level(written, static_cast<uint8_t>(byte));
      }
      word.text = std::string_view(written).substr(begin);
    }
  };
}

SpecialTokens read_post_processor(const Json& json, const std::string& where) {
  return json.is_null() ? SpecialTokens()
                        : read_stage<SpecialTokens>(json, where, kPostProcessorTypes);
}

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
