#include "core/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdlib>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/tokenizer/pipeline.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

// A special token that a file names by its text or its id.
struct SpecialName {
  bool is_named = false;  // also true if a file states that there is none
  std::string text;       // empty: by `id`
  int64_t id = -1;
};

struct SpecialNames {
  SpecialName bos, eos;
  std::optional<bool> adds_bos;  // "add_bos_token"
};

// Returns the id or the ids of `key`; none if it is absent or null.
std::vector<int64_t> optional_ids(const Json& json, const std::string& key,
                                  const std::string& where) {
  if (!has_value(json, key)) {
    return {};
  }
  return json.at(key).is_array() ? get_ints(json, key, where)
                                 : std::vector<int64_t>{get_int(json, key, where)};
}

// Reads the text of `file` in `edited`, else the file.
Json read_edited_json(const fs::path& file, const EditedFiles& edited, uint64_t max_bytes) {
  const auto text = edited.find(file.filename().string());
  return text == edited.end() ? read_json(file, max_bytes)
                              : parse_json(text->second, file.string());
}

// Returns the object in `file`, or in its text in `edited`; an empty one if there is neither.
Json read_optional_object(const fs::path& file, const EditedFiles& edited = {}) {
  if (!edited.contains(file.filename().string()) && !fs::exists(file)) {
    return Json::object();
  }
  Json json = read_edited_json(file, edited, uint64_t{1} << 30);
  USER_ERROR_IF(!json.is_object(), "{}: must be an object", file.string());
  return json;
}

// Reads a token that a file names by its text, or by an object of its text and flags.
AddedToken read_token(const Json& value, bool is_special, const std::string& where) {
  if (value.is_string()) {
    return {.content = value.get<std::string>(), .normalized = !is_special, .special = is_special};
  }
  USER_ERROR_IF(!value.is_object(), "{} must be a string or an object with 'content'", where);
  return read_added_token(value, is_special, where);
}

// Reads the tokens of the files next to a tokenizer in the order of transformers 5
// (tokenization_utils_base.py): "added_tokens_decoder" of tokenizer_config.json, or without it
// special_tokens_map.json and added_tokens.json; then the named special tokens.
FolderTokens read_folder_tokens(const fs::path& folder, const EditedFiles& edited) {
  FolderTokens tokens;
  const std::string where = (folder / "tokenizer_config.json").string();
  const Json config = read_optional_object(where, edited);
  const Json map = read_optional_object(folder / "special_tokens_map.json");
  const bool has_decoder = has_value(config, "added_tokens_decoder");
  std::vector<AddedToken> named;
  for (const Json& file :
       has_decoder ? std::vector<Json>{config} : std::vector<Json>{map, config}) {
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                            "cls_token", "mask_token"}) {
      if (has_value(file, key)) {
        named.push_back(read_token(file.at(key), true, fmt::format("{}: '{}'", where, key)));
      }
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      for (const auto& token : file.value(key, Json::array())) {
        named.push_back(read_token(token, true, fmt::format("{}: '{}'", where, key)));
      }
    }
  }
  const auto contains = [](const std::vector<AddedToken>& list, const std::string& text) {
    return std::ranges::find(list, text, &AddedToken::content) != list.end();
  };
  std::map<int64_t, AddedToken> by_id;
  if (has_decoder) {
    for (const auto& item : config.at("added_tokens_decoder").items()) {
      by_id[std::strtoll(item.key().c_str(), nullptr, 10)] =
          read_token(item.value(), false, where + ": 'added_tokens_decoder'");
    }
  } else {
    const Json added = read_optional_object(folder / "added_tokens.json");
    for (const auto& item : added.items()) {
      by_id[get_int(added, item.key(), (folder / "added_tokens.json").string())] =
          read_token(Json(item.key()), contains(named, item.key()), where);
    }
  }
  for (auto& [id, token] : by_id) {
    token.special = token.special || contains(named, token.content);
    tokens.added.push_back(token);
  }
  for (const AddedToken& token : named) {
    if (!token.content.empty() && !contains(tokens.added, token.content)) {
      tokens.added.push_back(token);
    }
  }
  const bool has_prefix = get_bool(config, "add_prefix_space", where, true);
  tokens.prefix = !has_prefix                                ? FolderTokens::Prefix::kNever
                  : get_bool(config, "legacy", where, false) ? FolderTokens::Prefix::kAlways
                                                             : FolderTokens::Prefix::kFirst;
  const Json model = read_optional_object(folder / "config.json");
  tokens.is_llama31 = model.empty() || has_value(model, "rope_scaling");
  return tokens;
}

// Reads FOLDER/tokenizer_config.json ("bos_token": text, {"content": text}, or null for none), then
// special_tokens_map.json, then config.json ("bos_token_id", the first of several). A missing file
// names nothing. Throws UserError if a file is broken or a value has another type.
SpecialNames read_special_names(const fs::path& folder) {
  SpecialNames names;
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string where = (folder / file).string();
    const Json json = read_optional_object(where);
    for (const auto& [key, name] :
         {std::pair("bos_token", &names.bos), {"eos_token", &names.eos}}) {
      if (!name->is_named && has_value(json, key)) {
        const Json& value = json.at(key);
        name->text =
            value.is_object() ? get_string(value, "content", where) : get_string(json, key, where);
      }
      name->is_named = name->is_named || json.contains(key);
    }
    if (!names.adds_bos && has_value(json, "add_bos_token")) {
      names.adds_bos = get_bool(json, "add_bos_token", where, false);
    }
  }
  const std::string where = (folder / "config.json").string();
  const Json json = read_optional_object(where);
  for (const auto& [key, name] :
       {std::pair("bos_token_id", &names.bos), {"eos_token_id", &names.eos}}) {
    if (!name->is_named && has_value(json, key)) {
      const std::vector<int64_t> ids = optional_ids(json, key, where);
      *name = {true, "", ids.empty() ? -1 : ids.front()};
    }
  }
  return names;
}

TokenizerKind file_kind(const fs::path& file) {
  if (file.filename() == "tokenizer.json") {
    return TokenizerKind::kTokenizerJson;
  }
  return is_tiktoken(read_start(open_to_read(file), 1024)) ? TokenizerKind::kTiktoken
                                                           : TokenizerKind::kSentencepiece;
}

std::unique_ptr<const TokenizerModel> read_model(const fs::path& file, TokenizerKind kind,
                                                 const EditedFiles& edited = {}) {
  const std::string where = file.string();
  const FolderTokens tokens = read_folder_tokens(file.parent_path(), edited);
  if (kind == TokenizerKind::kTokenizerJson) {
    return read_tokenizer_json(read_edited_json(file, edited, kMaxTokenizerBytes), where, tokens);
  }
  const std::string bytes = read_small_file(file, kMaxTokenizerBytes);
  return kind == TokenizerKind::kTiktoken ? read_tiktoken(bytes, where, tokens)
                                          : read_sentencepiece(bytes, where, tokens);
}

// Returns the id of a special token by the files next to the tokenizer, else `fallback`.
int64_t named_id(const SpecialName& name, const TokenizerModel& model, int64_t fallback) {
  if (!name.is_named) {
    return fallback;
  }
  const int64_t id = name.text.empty() ? name.id : model.find(name.text);
  return model.has(id) ? id : -1;
}

// Throws UserError for a long text: sentencepiece allocates about 170 bytes per byte of text.
void check_length(std::string_view text) {
  constexpr size_t kMaxBytes = size_t{4} << 20;
  USER_ERROR_IF(text.size() > kMaxBytes,
                "{:.1f} MB of text that cannot be cut at spaces are too much for the tokenizer, "
                "which takes at most {:.1f} MB at once; split the record",
                static_cast<double>(text.size()) / 1e6, static_cast<double>(kMaxBytes) / 1e6);
}

std::vector<int64_t> encode_unsplit(const Tokenizer& tokenizer, std::string_view text) {
  check_length(text);
  return tokenizer.encode(text);
}

}  // namespace

Tokenizer Tokenizer::load(const fs::path& folder, int64_t vocab_size, const EditedFiles& edited) {
  const fs::path file = tokenizer_file(folder);
  USER_ERROR_IF(file.empty(),
                "{}: has neither tokenizer.model nor tokenizer.json: text needs one of them; "
                "without them upcycling, inspecting and training on pre-tokenised rows work",
                folder.string());
  Tokenizer tokenizer;
  tokenizer.kind_ = file_kind(file);
  tokenizer.model_ = read_model(file, tokenizer.kind_, edited);
  const TokenizerModel& model = *tokenizer.model_;
  tokenizer.limit_ = vocab_size > 0 ? vocab_size : Vocabulary::kMaxIds;
  for (int64_t id = tokenizer.limit_; id < model.vocab_size(); ++id) {
    USER_ERROR_IF(model.has(id) && model.special_id(model.piece(id)) != id,
                  "{}: has {} tokens, config.json has vocab_size {}: the tokenizer is not that of "
                  "the model",
                  file.string(), model.vocab_size(), vocab_size);
  }
  const std::vector<int64_t> ids = model.encode("a");
  const std::string first = ids.empty() ? "" : model.piece(ids.front());
  tokenizer.adds_space_ = first.starts_with("\u2581") || first.starts_with("\u0120");
  tokenizer.read_special_ids(folder);
  tokenizer.check_ids({tokenizer.bos_id_});
  if (tokenizer.eos_id_ >= tokenizer.limit_) {
    tokenizer.eos_id_ = -1;  // the model cannot predict it
  }
  tokenizer.read_stop_ids(folder);
  return tokenizer;
}

void Tokenizer::read_special_ids(const fs::path& folder) {
  SpecialNames names = read_special_names(folder);
  if (kind_ == TokenizerKind::kSentencepiece) {  // ids of config.json are not needed
    for (SpecialName* name : {&names.bos, &names.eos}) {
      name->is_named = name->is_named && name->id < 0;
    }
  }
  bos_id_ = named_id(names.bos, *model_, model_->bos_id());
  eos_id_ = named_id(names.eos, *model_, model_->eos_id());
  const auto before = model_->before_text();  // empty for sentencepiece
  const bool has_bos = !before.empty() && before.front() == bos_id_;
  const bool is_json = kind_ == TokenizerKind::kTokenizerJson;
  has_add_bos_setting_ = kind_ != TokenizerKind::kSentencepiece && names.adds_bos.has_value();
  adds_bos_ = bos_id_ >= 0 && (is_json ? has_bos : names.adds_bos.value_or(has_bos));
}

void Tokenizer::read_stop_ids(const fs::path& folder) {
  for (const char* file : {"generation_config.json", "config.json"}) {
    if (stop_ids_.empty()) {
      stop_ids_ = optional_ids(read_optional_object(folder / file), "eos_token_id",
                               (folder / file).string());
    }
  }
  std::erase_if(stop_ids_, [](int64_t id) { return id < 0; });
  if (eos_id_ >= 0 && std::ranges::find(stop_ids_, eos_id_) == stop_ids_.end()) {
    stop_ids_.insert(stop_ids_.begin(), eos_id_);
  }
}

std::vector<int64_t> Tokenizer::encode_parsing_special(std::string_view text,
                                                       const std::vector<TextRange>& plain) const {
  std::vector<int64_t> all;
  for (const TokenOrText& part : split(text, plain)) {
    if (part.id >= 0) {
      all.push_back(part.id);
    } else if (part.begin < part.end) {
      const std::string_view between = text.substr(part.begin, part.end - part.begin);
      const std::vector<int64_t> ids =
          encode_part(between, slice_ranges(plain, part.begin, part.end), part.begin == 0);
      all.insert(all.end(), ids.begin(), ids.end());
    }
  }
  check_ids(all);
  return all;
}

std::vector<int64_t> Tokenizer::with_special(const std::vector<int64_t>& ids) const {
  std::vector<int64_t> all = model_->before_text();
  if (kind_ == TokenizerKind::kSentencepiece && adds_bos_ && bos_id_ >= 0) {
    all.push_back(bos_id_);
  }
  all.insert(all.end(), ids.begin(), ids.end());
  const auto after = model_->after_text();
  all.insert(all.end(), after.begin(), after.end());
  return all;
}

std::string Tokenizer::piece(int64_t id) const {
  return model_->has(id) ? model_->piece(id) : fmt::format("<{}>", id);
}

fs::path tokenizer_file(const fs::path& folder) {
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (fs::exists(folder / name)) {
      return folder / name;
    }
  }
  return {};
}

bool has_sentencepiece_model(const fs::path& folder) {
  const fs::path file = folder / "tokenizer.model";
  return fs::exists(file) && file_kind(file) == TokenizerKind::kSentencepiece;
}

std::optional<TokenizerKind> tokenizer_kind(const fs::path& folder) {
  const fs::path file = tokenizer_file(folder);
  return file.empty() ? std::nullopt : std::optional(file_kind(file));
}

EditedFiles stock_tokenizer_files(const fs::path& folder) try {
  const fs::path file = folder / "tokenizer.model", config_file = folder / "tokenizer_config.json";
  const Tokenizer tokenizer = Tokenizer::load(folder, 0);
  const bool has_config = fs::exists(config_file);
  OrderedJson config = has_config
                           ? parse_ordered_json(read_small_file(config_file), config_file.string())
                           : llama_tokenizer_config();
  const bool adds_bos = read_special_names(folder).adds_bos.value_or(!has_config);
  const bool is_llama = config.value("tokenizer_class", "Llama").starts_with("Llama");
  const Json json = tokenizer.kind() != TokenizerKind::kSentencepiece || !is_llama
                        ? Json()
                        : sentencepiece_as_json(read_small_file(file, kMaxTokenizerBytes),
                                                file.string(), read_folder_tokens(folder, {}),
                                                adds_bos ? tokenizer.bos_id() : -1);
  if (json.is_null()) {
    return {};
  }
  config["tokenizer_class"] = "PreTrainedTokenizerFast";  // LlamaTokenizer ignores parts of `json`
  for (const auto& [key, id] :
       {std::pair("bos_token", tokenizer.bos_id()), {"eos_token", tokenizer.eos_id()}}) {
    config.emplace(key, id < 0 ? OrderedJson() : OrderedJson(tokenizer.piece(id)));
  }
  config.emplace("unk_token", json["model"]["unk_token"].get<std::string>());
  for (const Json& token : json["added_tokens"]) {  // keeps their flag "normalized" false
    OrderedJson flags(token);
    flags.erase("id");
    config["added_tokens_decoder"][std::to_string(token["id"].get<int64_t>())] = flags;
  }
  return {{"tokenizer.json", json.dump() + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
} catch (const std::exception&) {  // a broken folder is copied unchanged
  return {};
}

std::string special_token_key(const fs::path& folder) {
  std::string settings;
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    settings += fmt::format(" {} {}", name, read_optional_object(folder / name).dump());
  }
  const Json config = read_optional_object(folder / "config.json");
  for (const char* key : {"bos_token_id", "eos_token_id", "rope_scaling"}) {
    settings += fmt::format(" {} {}", key, config.value(key, Json()).dump());
  }
  return settings;
}

OrderedJson llama_tokenizer_config() {
  return {{"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}, {"legacy", false}};
}

std::vector<std::string> split_tokens(const std::string& list) {
  std::vector<std::string> tokens(list.empty() ? 0 : 1);
  for (size_t at = 0; at < list.size(); ++at) {
    if (list[at] == ',') {
      tokens.emplace_back();
    } else {
      tokens.back() += list.compare(at, 2, "\\,") == 0 ? list[++at] : list[at];
    }
  }
  return tokens;
}

// transformers reads neither special_tokens_map.json nor added_tokens.json if there is an
// "added_tokens_decoder", which therefore also gets their tokens.
EditedFiles with_special_tokens(const fs::path& folder, const std::vector<std::string>& tokens) {
  const fs::path file = tokenizer_file(folder);
  const bool is_json = file.filename() == "tokenizer.json";
  USER_ERROR_IF(!is_json && !has_sentencepiece_model(folder),
                "--add-tokens: {} has no tokenizer that takes tokens: a tokenizer.json or a "
                "sentencepiece model, not a tiktoken file",
                folder.string());
  const auto model = read_model(file, file_kind(file));
  std::vector<AddedToken> all = read_folder_tokens(folder, {}).added;  // without tokenizer.json's
  for (AddedToken& token : all) {
    token.id = model->find(token.content);
  }
  const size_t known = all.size();
  int64_t next = model->vocab_size();
  for (const auto& token : tokens) {
    constexpr std::string_view kSpace = " \t\r\n";
    USER_ERROR_IF(
        token.find_first_not_of(kSpace) != 0 || kSpace.find(token.back()) != std::string::npos ||
            std::ranges::count(tokens, token) > 1 || token == "auto" ||
            find_invalid_utf8(token) != kValidUtf8,
        "--add-tokens: the token '{}' is empty, surrounded by white space, named twice, no "
        "UTF-8, or auto, which needs a --template",
        printable(token, 80));
    if (model->special_id(token) < 0) {
      all.push_back({.id = model->find(token) < 0 ? next++ : model->find(token),
                     .content = token,
                     .normalized = false,
                     .special = true});
    }
  }
  if (all.size() == known) {
    return {};
  }
  Json config = read_optional_object(folder / "tokenizer_config.json");
  const bool has_decoder = has_value(config, "added_tokens_decoder");
  if (!is_json && !has_decoder) {
    Json named = read_optional_object(folder / "special_tokens_map.json");
    named.update(config.empty() ? Json(llama_tokenizer_config()) : config);
    config = named;
  }
  Json json = is_json ? read_json(file, kMaxTokenizerBytes)
                      : read_optional_object(folder / "added_tokens.json");
  for (const AddedToken& token : all) {
    Json entry = added_token_json(token);
    if (!is_json || has_decoder) {
      config["added_tokens_decoder"].emplace(std::to_string(token.id), entry);
    }
    entry["id"] = token.id;
    if (!is_json) {
      json[token.content] = token.id;
    } else if (std::ranges::none_of(json["added_tokens"], [&](const Json& listed) {
                 return listed["content"] == token.content;
               })) {
      json["added_tokens"].push_back(entry);
    }
  }
  EditedFiles files = {{is_json ? "tokenizer.json" : "added_tokens.json", json.dump(2) + "\n"}};
  if (!config.empty()) {
    files["tokenizer_config.json"] = config.dump(2) + "\n";
  }
  return files;
}

void Tokenizer::check_ids(const std::vector<int64_t>& ids) const {
  for (const int64_t id : ids) {
    USER_ERROR_IF(id >= limit_,
                  "the token '{}' has the id {}, beyond the model's vocabulary of {}; resize the "
                  "model's embeddings, or remove the token from the text",
                  printable(piece(id), 40), id, limit_);
  }
}

std::string TextStream::push(const std::vector<int64_t>& ids) {
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  constexpr std::string_view kReplacement = "\uFFFD";  // decoded for an incomplete character
  std::string text = tokenizer_.decode(ids_);
  while (text.ends_with(kReplacement)) {
    text.resize(text.size() - kReplacement.size());
  }
  return advance(text);
}

// A later token may invalidate a run of byte tokens; `text` is then shorter than the returned text.
std::string TextStream::advance(const std::string& text) {
  if (returned_.starts_with(text)) {
    return "";
  }
  return text_after(std::exchange(returned_, text), text);
}

std::string text_after(const std::string& before, const std::string& text) {
  auto at = static_cast<size_t>(std::ranges::mismatch(before, text).in2 - text.begin());
  while (at > 0 && at < text.size() && is_continuation_byte(text[at])) {
    --at;
  }
  return text.substr(at);
}

std::vector<int64_t> WordEncoder::encode(std::string_view text) {
  if (tokenizer_->kind() != TokenizerKind::kSentencepiece) {
    return tokenizer_->encode(text);
  }
  const WordRule rule = tokenizer_->word_rule(text);
  // U+2581 in the text would count as a space; invalid UTF-8 may decode differently if split.
  if (rule == WordRule::kNone || text.find(kSpaceMark) != std::string_view::npos ||
      find_invalid_utf8(text) != kValidUtf8) {
    return encode_unsplit(*tokenizer_, text);
  }
  std::vector<int64_t> ids;
  for (size_t at = 0; at < text.size();) {
    const size_t letter = std::min(text.find_first_not_of(' ', at), text.size());
    size_t begin = letter, end = std::min(text.find(' ', letter), text.size());
    if (rule == WordRule::kKeeps) {
      // The tokenizer prepends a space to every text, so a word after the first loses one space.
      begin = at == 0 ? 0 : at + 1;
      if (text.find_first_not_of(' ', end) == std::string_view::npos) {
        end = text.size();  // trailing spaces stay with their word
      }
    }
    if (begin < end) {
      cache_.append(text.substr(begin, end - begin), ids,
                    [this](std::string_view word, std::vector<int64_t>& word_ids) {
                      const auto encoded = encode_unsplit(*tokenizer_, word);
                      word_ids.insert(word_ids.end(), encoded.begin(), encoded.end());
                    });
    }
    at = end;
  }
  return ids;
}

std::vector<int64_t> WordEncoder::encode_parsing_special(std::string_view text,
                                                         const std::vector<TextRange>& plain) {
  const auto is_token = [](const TokenOrText& part) { return part.id >= 0; };
  if (tokenizer_->word_rule(text) != WordRule::kNone &&
      std::ranges::none_of(tokenizer_->split(text, plain), is_token)) {
    return encode(text);
  }
  if (tokenizer_->kind() != TokenizerKind::kSentencepiece) {
    return tokenizer_->encode_part(text, plain, /*begins_text=*/true);
  }
  check_length(text);
  return tokenizer_->encode_parsing_special(text, plain);
}

}  // namespace moe::io
