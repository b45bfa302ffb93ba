#include "core/tokenizer/pipeline.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

std::vector<int64_t> Pipeline::encode(std::string_view text) const {
  return encode(text, /*begins_text=*/true, {});
}

std::vector<int64_t> Pipeline::encode_plain(std::string_view text, bool begins_text) const {
  return encode(text, begins_text, {{0, text.size()}});
}

std::vector<int64_t> Pipeline::encode_template(std::string_view text,
                                               const std::vector<TextRange>& plain) const {
  return encode(text, /*begins_text=*/true, plain);
}

std::vector<int64_t> Pipeline::encode(std::string_view text, bool begins_text,
                                      const std::vector<TextRange>& given_plain) const {
  std::string mended;
  std::vector<TextRange> plain = given_plain;
  if (find_invalid_utf8(text) != kValidUtf8) {
    mended = replace_invalid_utf8(text);  // which shifts the ranges
    text = mended;
    plain = plain.empty() ? plain : std::vector<TextRange>{{0, text.size()}};
  }
  std::vector<int64_t> ids;
  for (const auto& part : parts_.added.split_raw(text, plain)) {
    if (part.id != Vocabulary::kNone) {
      ids.push_back(part.id);
    } else {
      encode_text(text.substr(part.begin, part.end - part.begin), begins_text && part.begin == 0,
                  next_in_ranges(plain, part.begin) < part.end, ids);
    }
  }
  return ids;
}

// Normalizes each text between added tokens separately. Positions are lost by normalization: with
// `is_plain` no part of the text becomes a special token.
void Pipeline::encode_text(std::string_view text, bool begins_text, bool is_plain,
                           std::vector<int64_t>& ids) const {
  const std::string normal = parts_.normalizer(std::string(text));
  const std::vector<TextRange> plain =
      is_plain ? std::vector<TextRange>{{0, normal.size()}} : std::vector<TextRange>();
  for (const auto& part : parts_.added.split_normalized(normal, plain)) {
    if (part.id != Vocabulary::kNone) {
      ids.push_back(part.id);
    } else {
      encode_words(std::string_view(normal).substr(part.begin, part.end - part.begin),
                   begins_text && part.begin == 0, ids);
    }
  }
}

void Pipeline::encode_words(std::string_view text, bool begins_text,
                            std::vector<int64_t>& ids) const {
  Words words;
  words.list.push_back({text, begins_text});
  parts_.pre_tokenizer(words);
  for (const auto& word : words.list) {
    parts_.bpe.encode(word.text, ids);
  }
}

std::string Pipeline::decode(const std::vector<int64_t>& ids) const {
  std::vector<std::string> texts;
  texts.reserve(ids.size());
  for (const int64_t id : ids) {
    const AddedToken* added = parts_.added.find(id);
    if (added == nullptr && !parts_.bpe.vocabulary().has(id)) {
      continue;
    }
    const std::string& text =
        added != nullptr ? added->normal_form : parts_.bpe.vocabulary().text(id);
    if (!parts_.added.is_special(text)) {
      texts.push_back(text);
    }
  }
  std::string decoded;
  for (const auto& text : parts_.decoder(std::move(texts))) {
    decoded += text;
  }
  return decoded;
}

bool Pipeline::has(int64_t id) const {
  return parts_.added.find(id) != nullptr || parts_.bpe.vocabulary().has(id);
}

std::string Pipeline::piece(int64_t id) const {
  const AddedToken* added = parts_.added.find(id);
  return added != nullptr ? added->content : parts_.bpe.vocabulary().text(id);
}

std::string Pipeline::bytes(int64_t id) const {
  const std::string text = piece(id);
  if (parts_.added.find(id) != nullptr) {
    return text;
  }
  return parts_.is_byte_level ? from_byte_level(text).value_or(text) : bytes_of_piece(text);
}

int64_t Pipeline::find(const std::string& token) const {
  const int64_t added = parts_.added.find(std::string_view(token));
  return added != Vocabulary::kNone ? added : parts_.bpe.vocabulary().find(token);
}

int64_t Pipeline::vocab_size() const {
  return std::max(parts_.added.ids_end(), parts_.bpe.vocabulary().ids_end());
}

}  // namespace moe::io
