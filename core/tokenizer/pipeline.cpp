#include "core/tokenizer/pipeline.h"

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

std::vector<int64_t> Pipeline::encode(std::string_view text,
                                      const std::vector<TextRange>& given_plain,
                                      bool begins_text) const {
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

namespace {

const Json kNull;

const Json& member(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() ? kNull : *found;
}

Vocabulary read_vocabulary(const Json& model, const std::string& where) {
  const Json& vocab = member(model, "vocab");
  USER_ERROR_IF(!vocab.is_object(), "{}: 'vocab' must be an object of tokens and their ids", where);
  std::vector<std::pair<std::string, int64_t>> tokens;
  tokens.reserve(vocab.size());
  for (const auto& [text, id] : vocab.items()) {
    USER_ERROR_IF(!id.is_number_integer() || id < 0 || id >= Vocabulary::kMaxIds,
                  "{}: the token '{}' must have an id of 0 to {}", where, printable(text),
                  Vocabulary::kMaxIds - 1);
    tokens.emplace_back(text, id.get<int64_t>());
  }
  return {tokens, where};
}

// Parses a merge: ["a", "b"], or "a b" in files from before 2024.
std::optional<std::pair<std::string, std::string>> parse_merge(const Json& merge) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (!merge.is_string()) {
    return std::nullopt;
  }
  const auto text = merge.get<std::string>();
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    return std::nullopt;
  }
  return std::pair(text.substr(0, space), text.substr(space + 1));
}

std::vector<BpeMerge> read_merges(const Json& model, const Vocabulary& vocabulary,
                                  const std::string& where) {
  const Json& list = member(model, "merges");
  USER_ERROR_IF(!list.is_array(), "{}: 'merges' must be a list", where);
  std::vector<BpeMerge> merges;
  merges.reserve(list.size());
  for (const auto& merge : list) {
    if (merge.is_string() && merge.get_ref<const std::string&>().starts_with("#version")) {
      continue;
    }
    const auto halves = parse_merge(merge);
    USER_ERROR_IF(!halves, "{}: merge {} is not a pair of tokens", where, merges.size() + 1);
    const auto id_of = [&](const std::string& token) {
      const int64_t id = vocabulary.find(token);
      USER_ERROR_IF(id == Vocabulary::kNone,
                    "{}: merge {} needs the token '{}', which 'vocab' lacks", where,
                    merges.size() + 1, printable(token));
      return id;
    };
    const auto& [left, right] = *halves;
    merges.push_back({id_of(left), id_of(right), id_of(left + right), std::ssize(merges)});
  }
  return merges;
}

// Throws UserError for settings that trained models do not have and that change every id.
void refuse_unsupported(const Json& model, const std::string& where) {
  if (const std::string type = get_string(model, "type", where, "BPE"); type != "BPE") {
    throw UserError("{}: the model '{}' is not supported; supported: BPE", where, printable(type));
  }
  USER_ERROR_IF(get_double(model, "dropout", where, 0) != 0,
                "{}: 'dropout' makes ids random and is not supported; set it to null", where);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    USER_ERROR_IF(!get_string(model, key, where, "").empty(), "{}: '{}' is not supported", where,
                  key);
  }
}

Bpe read_bpe(const Json& model, const std::string& where) {
  refuse_unsupported(model, where);
  Vocabulary vocabulary = read_vocabulary(model, where);
  const auto merges = read_merges(model, vocabulary, where);
  BpeOptions options;
  options.byte_fallback = get_bool(model, "byte_fallback", where, false);
  options.fuse_unknown = get_bool(model, "fuse_unk", where, false);
  options.ignore_merges = get_bool(model, "ignore_merges", where, false);
  if (!member(model, "unk_token").is_null()) {
    const std::string unknown = get_string(model, "unk_token", where);
    options.unknown = vocabulary.find(unknown);
    USER_ERROR_IF(options.unknown == Vocabulary::kNone,
                  "{}: 'unk_token' is '{}', which 'vocab' lacks", where, printable(unknown));
  }
  return {std::move(vocabulary), merges, options};
}

// Returns true if a stage, or one in its sequence, is ByteLevel.
bool is_byte_level(const Json& stage) {
  if (!stage.is_object()) {
    return false;
  }
  for (const char* key : {"pretokenizers", "decoders"}) {
    for (const auto& part : member(stage, key)) {
      if (is_byte_level(part)) {
        return true;
      }
    }
  }
  return member(stage, "type") == "ByteLevel";
}

constexpr size_t kMaxStages = 256;
constexpr size_t kMaxSpecialTokens = 4096;  // around a text

// Returns the number of stages in `stage`, those of inner sequences included.
size_t count_stages(const Json& stage) {
  size_t count = 1;
  for (const char* key : {"normalizers", "pretokenizers", "processors", "decoders"}) {
    for (const auto& part : stage.is_object() ? member(stage, key) : kNull) {
      count += count_stages(part);
    }
  }
  return count;
}

// Throws UserError if there are too many stages: a file may hold millions, each costs time per
// text.
void check_stages(const Json& json, const std::string& where) {
  for (const char* key : {"normalizer", "pre_tokenizer", "post_processor", "decoder"}) {
    if (const size_t count = count_stages(member(json, key)); count > kMaxStages) {
      throw UserError("{}: {}: {} stages, more than the {} that one may have; fetch the file again",
                      where, key, count, kMaxStages);
    }
  }
}

void check_special(const SpecialTokens& special, const TokenizerModel& model,
                   const std::string& where) {
  USER_ERROR_IF(special.before.size() + special.after.size() > kMaxSpecialTokens,
                "{}: the template puts {} tokens around a text, more than {}; fetch it again",
                where, special.before.size() + special.after.size(), kMaxSpecialTokens);
  for (const auto* side : {&special.before, &special.after}) {
    for (const int64_t id : *side) {
      USER_ERROR_IF(!model.has(id),
                    "{}: the template puts the id {} around a text, which no token has", where, id);
    }
  }
}

}  // namespace

std::unique_ptr<TokenizerModel> read_tokenizer_json(const Json& json, const std::string& where) {
  USER_ERROR_IF(!json.is_object() || !member(json, "model").is_object(),
                "{}: holds no 'model', so it is no tokenizer; fetch it again", where);
  check_stages(json, where);
  Bpe bpe = read_bpe(member(json, "model"), where + ": model");
  Normalizer normalizer = read_normalizer(member(json, "normalizer"), where + ": normalizer");
  AddedTokens added(read_added_tokens(member(json, "added_tokens"), where + ": added_tokens"),
                    normalizer, bpe.vocabulary(), where);
  const Json& cut = member(json, "pre_tokenizer");
  const Json& joined = member(json, "decoder");
  const SpecialTokens special =
      read_post_processor(member(json, "post_processor"), where + ": post_processor");
  auto pipeline = std::make_unique<Pipeline>(PipelineParts{
      std::move(added), std::move(normalizer), read_pre_tokenizer(cut, where + ": pre_tokenizer"),
      std::move(bpe), special, read_decoder(joined, where + ": decoder"),
      special.before.empty() ? -1 : special.before.front(),
      special.after.empty() ? -1 : special.after.back(),
      is_byte_level(cut) || is_byte_level(joined)});
  check_special(special, *pipeline, where);
  return pipeline;
}

}  // namespace moe::io
