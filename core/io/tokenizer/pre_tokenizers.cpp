#include "core/io/tokenizer/pre_tokenizers.h"

#include "core/io/tokenizer/byte_level.h"
#include "core/io/tokenizer/stage.h"
#include "core/io/tokenizer/unicode.h"

namespace moe::io {

namespace {

// GPT-2's own expression, which ByteLevel brings along.
constexpr const char* kGpt2Split =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// The library takes \w and \s of another implementation here, in which the joiners are of words.
constexpr const char* kWordsAndSymbols =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}]+)"
    R"(|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}\s]+)";

size_t bytes_of_words(const Words& words) {
  size_t sum = 0;
  for (const auto& word : words.list) {
    sum += word.text.size();
  }
  return sum;
}

PreTokenizer split(Pattern pattern, Behavior behavior, bool inverted = false) {
  return [pattern = std::move(pattern), behavior, inverted](Words& words) {
    std::vector<Word> parts;
    parts.reserve(words.list.size());
    for (const auto& word : words.list) {
      Sections sections = pattern(word.text);
      if (inverted) {
        for (auto& section : sections) {
          section.is_match = !section.is_match;
        }
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

template <bool (*is_match)(char32_t)>
Sections matches_of(std::string_view text) {
  return match_characters(text, is_match);
}

// `text` with `prefix` before it.
std::string_view prepend(Words& words, const std::string& prefix, std::string_view text) {
  return words.written.emplace_back(prefix).append(text);
}

PreTokenizer read_byte_level_pre_tokenizer(const Json& json, const std::string& where) {
  const bool adds_space = get_bool(json, "add_prefix_space", where, true);
  const PreTokenizer cut =
      get_bool(json, "use_regex", where, true) ? split_isolated(kGpt2Split, where) : [](Words&) {};
  return [adds_space, cut, write = bytes_as_characters()](Words& words) {
    for (auto& word : words.list) {
      if (adds_space && !word.text.starts_with(' ')) {
        word.text = prepend(words, " ", word.text);
      }
    }
    cut(words);
    write(words);
  };
}

PreTokenizer read_split(const Json& json, const std::string& where) {
  return split(read_pattern(json, where),
               parse_behavior(get_string(json, "behavior", where), where),
               get_bool(json, "invert", where, false));
}

PreTokenizer read_digits(const Json& json, const std::string& where) {
  return split(matches_of<is_numeric>, get_bool(json, "individual_digits", where, false)
                                           ? Behavior::kIsolated
                                           : Behavior::kContiguous);
}

PreTokenizer read_punctuation(const Json& json, const std::string& where) {
  return split(matches_of<is_punctuation>,
               parse_behavior(get_string(json, "behavior", where, "Isolated"), where));
}

PreTokenizer read_whitespace(const Json&, const std::string& where) {
  return split(regex_pattern(kWordsAndSymbols, where), Behavior::kRemoved, /*inverted=*/true);
}

PreTokenizer read_whitespace_split(const Json&, const std::string&) {
  return split(matches_of<is_white_space>, Behavior::kRemoved);
}

std::string replace_spaces(std::string_view text, const std::string& mark) {
  std::string replaced;
  replaced.reserve(text.size() + text.size() / 4);
  for (const char c : text) {
    if (c == ' ') {
      replaced += mark;
    } else {
      replaced += c;
    }
  }
  return replaced;
}

PreTokenizer read_metaspace_pre_tokenizer(const Json& json, const std::string& where) {
  std::string mark;
  append_code_point(mark, read_character(json, "replacement", where));
  const PrependScheme scheme = read_prepend_scheme(json, where);
  const PreTokenizer cut = get_bool(json, "split", where, true)
                               ? split(literal_pattern(mark, where), Behavior::kMergedWithNext)
                               : [](Words&) {};
  return [mark, scheme, cut](Words& words) {
    for (auto& word : words.list) {
      std::string marked = replace_spaces(word.text, mark);
      const bool prepends =
          scheme == PrependScheme::kAlways || (scheme == PrependScheme::kFirst && word.begins_text);
      if (prepends && !marked.starts_with(mark)) {
        marked.insert(0, mark);
      }
      word.text = words.written.emplace_back(std::move(marked));
    }
    cut(words);
  };
}

PreTokenizer read_list_of_pre_tokenizers(const Json& json, const std::string& where) {
  return [parts = read_sequence(json, "pretokenizers", where, read_pre_tokenizer),
          where](Words& words) {
    const size_t max_bytes = max_stage_bytes(bytes_of_words(words));
    for (const auto& part : parts) {
      part(words);
      check_growth(bytes_of_words(words), max_bytes, where);
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
    {"WhitespaceSplit", read_whitespace_split},
    {"Sequence", read_list_of_pre_tokenizers},
};

}  // namespace

PreTokenizer read_pre_tokenizer(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return [](Words&) {};
  }
  return read_stage<PreTokenizer>(json, where, kPreTokenizerTypes);
}

PreTokenizer split_isolated(const std::string& expression, const std::string& where) {
  return split(regex_pattern(expression, where), Behavior::kIsolated);
}

PreTokenizer bytes_as_characters() {
  return [](Words& words) {
    std::string& written = words.written.emplace_back();
    // Every character of a byte takes one or two, so nothing moves.
    written.reserve(bytes_of_words(words) * 2);
    for (auto& word : words.list) {
      const size_t begin = written.size();
      for (const char byte : word.text) {
        append_byte_level(written, static_cast<uint8_t>(byte));
      }
      word.text = std::string_view(written).substr(begin);
    }
  };
}

}  // namespace moe::io
