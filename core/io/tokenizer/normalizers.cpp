#include "core/io/tokenizer/normalizers.h"

#include "core/io/tokenizer/stage.h"
#include "core/io/tokenizer/unicode.h"

namespace moe::io {

namespace {

template <NormalForm form>
Normalizer read_form(const Json&, const std::string&) {
  return [](const std::string& text) { return normal_form(text, form); };
}

Normalizer read_prepend(const Json& json, const std::string& where) {
  return [prefix = get_string(json, "prepend", where)](std::string text) {
    return text.empty() ? text : prefix + text;
  };
}

Normalizer read_replace_normalizer(const Json& json, const std::string& where) {
  return [pattern = read_pattern(json, where),
          content = get_string(json, "content", where)](const std::string& text) {
    std::string replaced;
    for (const auto& section : pattern(text)) {
      if (section.is_match) {
        replaced += content;
      } else {
        replaced.append(text, section.begin, section.end - section.begin);
      }
    }
    return replaced;
  };
}

Normalizer read_strip_normalizer(const Json& json, const std::string& where) {
  return [left = get_bool(json, "strip_left", where, false),
          right = get_bool(json, "strip_right", where, false)](const std::string& text) {
    std::string_view rest = text;
    rest.remove_prefix(left ? skip_white_space(rest) : 0);
    return std::string(right ? rest.substr(0, end_without_white_space(rest)) : rest);
  };
}

Normalizer read_lowercase(const Json&, const std::string&) {
  return [](const std::string& text) { return lower_case(text); };
}

Normalizer read_list_of_normalizers(const Json& json, const std::string& where) {
  return [parts = read_sequence(json, "normalizers", where, read_normalizer)](std::string text) {
    for (const auto& part : parts) {
      text = part(std::move(text));
    }
    return text;
  };
}

constexpr StageType<Normalizer> kNormalizerTypes[] = {
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

}  // namespace

Normalizer read_normalizer(const Json& json, const std::string& where) {
  if (json.is_null()) {
    return [](std::string text) { return text; };
  }
  return read_stage<Normalizer>(json, where, kNormalizerTypes);
}

}  // namespace moe::io
