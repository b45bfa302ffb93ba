#include "core/io/tokenizer/normalizers.h"

#include "core/io/tokenizer/stage.h"
#include "core/io/tokenizer/unicode.h"

namespace moe::io {

namespace {

// A normalizer that throws UserError where the text would have more than `max_bytes` bytes.
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

}  // namespace moe::io
