#include "core/io/tokenizer/post_processor.h"

#include "core/io/tokenizer/stage.h"

namespace moe::io {

namespace {

// The ids that a template's name stands for.
std::vector<int64_t> ids_of(const Json& json, const std::string& name, const std::string& where) {
  const auto tokens = json.find("special_tokens");
  if (tokens == json.end() || !tokens->is_object() || !tokens->contains(name)) {
    throw UserError("{}: 'special_tokens' says nothing of '{}'", where, printable(name));
  }
  return get_ints(tokens->at(name), "ids", where);
}

SpecialTokens read_template(const Json& json, const std::string& where) {
  const auto pieces = json.find("single");
  if (pieces == json.end() || !pieces->is_array()) {
    throw UserError("{}: 'single' must be a list", where);
  }
  SpecialTokens special;
  bool has_text = false;
  for (const auto& piece : *pieces) {
    if (piece.is_object() && piece.contains("SpecialToken")) {
      auto& side = has_text ? special.after : special.before;
      const auto ids = ids_of(json, get_string(piece["SpecialToken"], "id", where), where);
      side.insert(side.end(), ids.begin(), ids.end());
    } else if (piece.is_object() && piece.contains("Sequence") && !has_text &&
               get_string(piece["Sequence"], "id", where) == "A") {
      has_text = true;
    } else {
      throw UserError("{}: 'single' must hold the sequence A once, beside special tokens", where);
    }
  }
  if (!has_text) {
    throw UserError("{}: 'single' lacks the sequence A", where);
  }
  return special;
}

SpecialTokens read_byte_level_post_processor(const Json&, const std::string&) { return {}; }

// The later ones put their tokens around those of the ones before.
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
    {"ByteLevel", read_byte_level_post_processor},
    {"Sequence", read_list_of_post_processors},
};

}  // namespace

std::vector<int64_t> SpecialTokens::around(const std::vector<int64_t>& ids) const {
  std::vector<int64_t> all = before;
  all.insert(all.end(), ids.begin(), ids.end());
  all.insert(all.end(), after.begin(), after.end());
  return all;
}

SpecialTokens read_post_processor(const Json& json, const std::string& where) {
  return json.is_null() ? SpecialTokens()
                        : read_stage<SpecialTokens>(json, where, kPostProcessorTypes);
}

}  // namespace moe::io
