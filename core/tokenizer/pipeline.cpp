#include "core/tokenizer/pipeline.h"

#include <algorithm>
#include <optional>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/tokenizer/patterns.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace {

constexpr size_t kMaxAddedTokenBytes = 1024;  // matched from each byte of a text

// Returns true for a letter, mark, digit, connector such as _, or joiner.
bool is_word_character(std::string_view character) {
  static const Pattern word_characters =
      regex_pattern(R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])", "characters of words");
  const Sections sections = word_characters(character);
  return !sections.empty() && sections.front().is_match;
}

bool begins_with_word(std::string_view text) {
  size_t at = 0;
  next_code_point(text, at);
  return is_word_character(text.substr(0, at));
}

bool ends_with_word(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && is_continuation_byte(text[at])) {
    --at;
  }
  return is_word_character(text.substr(at));
}

bool is_whole_word(std::string_view text, size_t begin, size_t end) {
  return (begin == 0 || !ends_with_word(text.substr(0, begin))) &&
         (end == text.size() || !begins_with_word(text.substr(end)));
}

const Json kNull;

const Json& member(const Json& json, const char* key) {
  const auto value = json.find(key);
  return value == json.end() ? kNull : *value;
}

// Reads the list of added tokens, which may be null.
std::vector<AddedToken> read_added_tokens(const Json& json, const std::string& where) {
  std::vector<AddedToken> tokens;
  USER_ERROR_IF(!json.is_array() && !json.is_null(), "{}: must be a list", where);
  for (const auto& entry : json) {
    tokens.push_back(read_added_token(entry, false, where));
  }
  return tokens;
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
    const auto pair = parse_merge(merge);
    USER_ERROR_IF(!pair, "{}: merge {} is not a pair of tokens", where, merges.size() + 1);
    const auto find_id = [&](const std::string& token) {
      const int64_t id = vocabulary.find(token);
      USER_ERROR_IF(id == Vocabulary::kNone,
                    "{}: merge {} needs the token '{}', which 'vocab' lacks", where,
                    merges.size() + 1, printable(token));
      return id;
    };
    const auto& [left, right] = *pair;
    merges.push_back({find_id(left), find_id(right), find_id(left + right), std::ssize(merges)});
  }
  return merges;
}

// Throws UserError for unsupported settings, which would change every id.
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

// Calls `on_stage` for `stage` and, recursively, the stages that a Sequence lists under `key`.
template <typename OnStage>
void for_each_stage(const Json& stage, const char* key, const OnStage& on_stage) {
  on_stage(stage);
  for (const auto& part : member(stage, "type") == "Sequence" ? member(stage, key) : kNull) {
    for_each_stage(part, key, on_stage);
  }
}

bool is_byte_level(const Json& stage, const char* key) {
  bool is_any = false;
  for_each_stage(stage, key,
                 [&](const Json& part) { is_any = is_any || member(part, "type") == "ByteLevel"; });
  return is_any;
}

// Throws UserError if there are too many stages, each of which takes time per text.
void check_stages(const Json& json, const std::string& where) {
  for (const auto& [key, parts] : {std::pair("normalizer", "normalizers"),
                                   {"pre_tokenizer", "pretokenizers"},
                                   {"post_processor", "processors"},
                                   {"decoder", "decoders"}}) {
    constexpr size_t kMaxStages = 256;
    size_t count = 0;
    for_each_stage(member(json, key), parts, [&](const Json&) { ++count; });
    USER_ERROR_IF(count > kMaxStages,
                  "{}: {}: {} stages, more than the {} that one may have; fetch the file again",
                  where, key, count, kMaxStages);
  }
}

void check_special(const SpecialTokens& special, const TokenizerModel& model,
                   const std::string& where) {
  std::vector<int64_t> ids = special.before;
  ids.insert(ids.end(), special.after.begin(), special.after.end());
  constexpr size_t kMaxSpecialTokens = 4096;
  USER_ERROR_IF(ids.size() > kMaxSpecialTokens,
                "{}: the template puts {} tokens around a text, more than {}; fetch it again",
                where, ids.size(), kMaxSpecialTokens);
  for (const int64_t id : ids) {
    USER_ERROR_IF(!model.has(id),
                  "{}: the template puts the id {} around a text, which no token has", where, id);
  }
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens, const Normalizer& normalizer,
                         const std::function<int64_t(const std::string&)>& find_id, int64_t ids_end,
                         const std::string& where) {
  for (AddedToken token : tokens) {
    const int64_t known = find(token.content) >= 0 ? find(token.content) : find_id(token.content);
    token.id = known >= 0 ? known : std::max(ids_end, this->ids_end());
    USER_ERROR_IF(token.content.size() > kMaxAddedTokenBytes || token.id >= Vocabulary::kMaxIds,
                  "{}: the added token {} has {} bytes, more than the {} that one may have, or too "
                  "great an id",
                  where, token.id, token.content.size(), kMaxAddedTokenBytes);
    token.normal_form = token.normalized ? normalizer(token.content) : token.content;
    USER_ERROR_IF(token.normal_form.empty(),
                  "{}: the added token {} ('{}') is empty, or becomes so by normalization", where,
                  token.id, printable(token.content));
    ids_[token.content] = token.id;
    tokens_[token.id] = std::move(token);
  }
  for (const auto& [id, token] : tokens_) {
    (token.normalized ? normalized_ : raw_).add(token.normal_form, id, token.special);
  }
}

void AddedTokens::Tree::add(std::string_view text, int64_t id, bool is_special) {
  begins[static_cast<uint8_t>(text.front())] = true;
  size_t node = 0;
  for (const char byte : text) {
    const auto [next, is_new] =
        nodes[node].next.try_emplace(static_cast<uint8_t>(byte), nodes.size());
    const size_t child = next->second;
    if (is_new) {
      nodes.emplace_back();
    }
    node = child;
  }
  nodes[node].id = id;
  nodes[node].is_special = is_special;
}

TokenOrText AddedTokens::Tree::longest(std::string_view text, size_t at, size_t special_end) const {
  TokenOrText match{Vocabulary::kNone, at, at};
  size_t node = 0;
  for (size_t end = at; end < text.size();) {
    const auto next = nodes[node].next.find(static_cast<uint8_t>(text[end]));
    if (next == nodes[node].next.end()) {
      break;
    }
    ++end;
    node = next->second;
    if (nodes[node].id != Vocabulary::kNone && (!nodes[node].is_special || end <= special_end)) {
      match = {nodes[node].id, at, end};
    }
  }
  return match;
}

// The search continues at the end of the matched text, even if the match is rejected or includes
// white space, so the next match may begin within that white space.
std::vector<TokenOrText> AddedTokens::split(std::string_view text, bool is_normalized,
                                            const std::vector<TextRange>& plain) const {
  const Tree& tree = is_normalized ? normalized_ : raw_;
  std::vector<TokenOrText> parts;
  size_t text_begin = 0;  // of the text after the previous token
  size_t white_end = 0;   // of the last run of white space after a token with `rstrip`
  for (size_t at = 0; at < text.size();) {
    TokenOrText match;
    if (tree.begins[static_cast<uint8_t>(text[at])]) {
      match = tree.longest(text, at, next_in_ranges(plain, at));
    }
    if (match.id == Vocabulary::kNone) {
      ++at;
      continue;
    }
    at = match.end;
    const AddedToken& token = tokens_.at(match.id);
    if (token.single_word && !is_whole_word(text, match.begin, match.end)) {
      continue;
    }
    if (token.lstrip) {  // up to the end of the previous token, so that each byte is visited once
      const size_t length = std::max(match.begin, text_begin) - text_begin;
      match.begin = text_begin + end_without_white_space(text.substr(text_begin, length));
    }
    if (token.rstrip) {
      if (match.end >= white_end) {
        white_end = match.end + skip_white_space(text.substr(match.end));
      }
      match.end = white_end;  // an earlier token may have set it for this run
    }
    if (text_begin < match.begin) {
      parts.push_back({Vocabulary::kNone, text_begin, match.begin});
    }
    parts.push_back(match);
    text_begin = match.end;
  }
  if (text_begin != text.size()) {
    parts.push_back({Vocabulary::kNone, text_begin, text.size()});
  }
  return parts;
}

const AddedToken* AddedTokens::find(int64_t id) const {
  const auto token = tokens_.find(id);
  return token == tokens_.end() ? nullptr : &token->second;
}

int64_t AddedTokens::find(std::string_view content) const {
  const auto id = ids_.find(content);
  return id == ids_.end() ? Vocabulary::kNone : id->second;
}

bool AddedTokens::is_special(std::string_view text) const {
  const int64_t id = find(text);
  return id != Vocabulary::kNone && tokens_.at(id).special;
}

std::vector<int64_t> Pipeline::encode(std::string_view text, const std::vector<TextRange>& plain,
                                      bool begins_text) const {
  if (find_invalid_utf8(text) != kValidUtf8) {
    const std::string valid = replace_invalid_utf8(text);
    const std::vector<TextRange> all = {{0, valid.size()}};  // U+FFFD shifts the ranges
    return encode(valid, plain.empty() ? plain : all, begins_text);
  }
  std::vector<int64_t> ids;
  for (const auto& part : parts_.added.split(text, /*is_normalized=*/false, plain)) {
    if (part.id != Vocabulary::kNone) {
      ids.push_back(part.id);
    } else {
      encode_text(text.substr(part.begin, part.end - part.begin), begins_text && part.begin == 0,
                  next_in_ranges(plain, part.begin) < part.end, ids);
    }
  }
  return ids;
}

// Encodes a text between added tokens. Normalization shifts positions, so with `is_plain` no part
// of the text becomes a special token.
void Pipeline::encode_text(std::string_view text, bool begins_text, bool is_plain,
                           std::vector<int64_t>& ids) const {
  const std::string normal = parts_.normalizer(std::string(text));
  const std::vector<TextRange> plain =
      is_plain ? std::vector<TextRange>{{0, normal.size()}} : std::vector<TextRange>();
  for (const auto& part : parts_.added.split(normal, /*is_normalized=*/true, plain)) {
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

std::string Pipeline::piece(int64_t id) const {
  const AddedToken* added = parts_.added.find(id);
  return added != nullptr ? added->content : parts_.bpe.vocabulary().text(id);
}

std::string Pipeline::bytes(int64_t id) const {
  const std::string text = piece(id);
  if (parts_.added.find(id) != nullptr) {
    return text;
  }
  return parts_.is_byte_level ? from_byte_level(text).value_or(text) : piece_bytes(text);
}

int64_t Pipeline::find(const std::string& token) const {
  const int64_t added = parts_.added.find(std::string_view(token));
  return added != Vocabulary::kNone ? added : parts_.bpe.vocabulary().find(token);
}

AddedToken read_added_token(const Json& json, bool is_special, const std::string& where) {
  USER_ERROR_IF(!json.is_object(), "{}: an object with 'content' is expected", where);
  const bool special = get_bool(json, "special", where, is_special);
  return {.content = get_string(json, "content", where),
          .single_word = get_bool(json, "single_word", where, false),
          .lstrip = get_bool(json, "lstrip", where, false),
          .rstrip = get_bool(json, "rstrip", where, false),
          .normalized = get_bool(json, "normalized", where, !special),
          .special = special};
}

Json added_token_json(const AddedToken& token) {
  return {{"content", token.content},       {"single_word", token.single_word},
          {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
          {"normalized", token.normalized}, {"special", token.special}};
}

std::unique_ptr<TokenizerModel> read_tokenizer_json(const Json& json, const std::string& where,
                                                    const FolderTokens& tokens) {
  USER_ERROR_IF(!json.is_object() || !member(json, "model").is_object(),
                "{}: holds no 'model', so it is no tokenizer; fetch it again", where);
  check_stages(json, where);
  Bpe bpe = read_bpe(member(json, "model"), where + ": model");
  Normalizer normalizer = read_normalizer(member(json, "normalizer"), where + ": normalizer");
  std::vector<AddedToken> listed =
      read_added_tokens(member(json, "added_tokens"), where + ": added_tokens");
  listed.insert(listed.end(), tokens.added.begin(), tokens.added.end());
  AddedTokens added(
      listed, normalizer, [&](const std::string& text) { return bpe.vocabulary().find(text); },
      bpe.vocabulary().tokens(), where);
  const Json& pre_tokenizer = member(json, "pre_tokenizer");
  const Json& decoder = member(json, "decoder");
  const SpecialTokens special =
      read_post_processor(member(json, "post_processor"), where + ": post_processor");
  auto pipeline = std::make_unique<Pipeline>(PipelineParts{
      std::move(added), std::move(normalizer),
      read_pre_tokenizer(pre_tokenizer, where + ": pre_tokenizer"), std::move(bpe), special,
      read_decoder(decoder, where + ": decoder"),
      special.before.empty() ? -1 : special.before.front(),
      special.after.empty() ? -1 : special.after.back(),
      is_byte_level(pre_tokenizer, "pretokenizers") || is_byte_level(decoder, "decoders")});
  check_special(special, *pipeline, where);
  return pipeline;
}

}  // namespace moe::io
