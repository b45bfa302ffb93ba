#include "core/tokenizer/tokenizer.h"

#include <algorithm>
#include <cstdlib>
#include <map>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/tokenizer/pipeline.h"
#include "core/tokenizer/stock_tokenizer.h"
#include "core/tokenizer/unicode.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

// A special token as the files next to a tokenizer.json name it, by its text or its id.
struct SpecialName {
  bool is_named = false;  // also true if a file states that there is none
  std::string text;       // empty: by `id`
  int64_t id = -1;
};

struct SpecialNames {
  SpecialName bos, eos;
  std::optional<bool> adds_bos;  // "add_bos_token"
};

void read_special_text(const Json& json, const std::string& key, const std::string& where,
                       SpecialName& name) {
  const auto value = json.find(key);
  if (name.is_named || value == json.end()) {
    return;
  }
  name.is_named = true;
  if (!value->is_null()) {
    name.text =
        value->is_object() ? get_string(*value, "content", where) : get_string(json, key, where);
  }
}

// Returns the id or the ids of `key`; none if it is absent or null.
std::vector<int64_t> optional_ids(const Json& json, const std::string& key,
                                  const std::string& where) {
  if (!has_value(json, key)) {
    return {};
  }
  return json.at(key).is_array() ? get_ints(json, key, where)
                                 : std::vector<int64_t>{get_int(json, key, where)};
}

void read_special_id(const Json& json, const std::string& key, const std::string& where,
                     SpecialName& name) {
  if (name.is_named || !has_value(json, key)) {
    return;
  }
  name.is_named = true;
  if (const std::vector<int64_t> ids = optional_ids(json, key, where); !ids.empty()) {
    name.id = ids.front();
  }
}

// Returns the object in `file`; an empty one if there is no such file.
Json read_optional_object(const fs::path& file) {
  if (!fs::exists(file)) {
    return Json::object();
  }
  Json json = read_json(file);
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

// Reads the tokens that the files next to a tokenizer name, as transformers 5 does
// (tokenization_utils_base.py): "added_tokens_decoder" of tokenizer_config.json, without it
// special_tokens_map.json and added_tokens.json; then the named special tokens.
FolderTokens read_folder_tokens(const fs::path& folder, const EditedFiles& edited) {
  FolderTokens tokens;
  const std::string where = (folder / "tokenizer_config.json").string();
  const auto text = edited.find("tokenizer_config.json");
  const Json config = text == edited.end() ? read_optional_object(folder / "tokenizer_config.json")
                                           : parse_json(text->second, where);
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
  const auto is_named = [&](const std::string& text) {
    return std::ranges::find(named, text, &AddedToken::content) != named.end();
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
          read_token(Json(item.key()), is_named(item.key()), where);
    }
  }
  for (auto& [id, token] : by_id) {
    token.special = token.special || is_named(token.content);
    tokens.added.push_back(token);
  }
  for (const AddedToken& token : named) {
    if (!token.content.empty() && std::ranges::find(tokens.added, token.content,
                                                    &AddedToken::content) == tokens.added.end()) {
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
    const Json json = read_optional_object(folder / file);
    read_special_text(json, "bos_token", where, names.bos);
    read_special_text(json, "eos_token", where, names.eos);
    if (!names.adds_bos && has_value(json, "add_bos_token")) {
      names.adds_bos = get_bool(json, "add_bos_token", where, false);
    }
  }
  const std::string where = (folder / "config.json").string();
  const Json json = read_optional_object(folder / "config.json");
  read_special_id(json, "bos_token_id", where, names.bos);
  read_special_id(json, "eos_token_id", where, names.eos);
  return names;
}

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

bool begins_as_tiktoken(const fs::path& file) {
  return is_tiktoken(read_start(open_to_read(file), 1024).value_or(""));
}

TokenizerKind file_kind(const fs::path& file) {
  if (file.filename() == "tokenizer.json") {
    return TokenizerKind::kTokenizerJson;
  }
  return begins_as_tiktoken(file) ? TokenizerKind::kTiktoken : TokenizerKind::kSentencepiece;
}

std::unique_ptr<const TokenizerModel> read_model(const fs::path& file, TokenizerKind kind,
                                                 const EditedFiles& edited = {}) {
  const std::string where = file.string();
  const FolderTokens tokens = read_folder_tokens(file.parent_path(), edited);
  if (kind == TokenizerKind::kTokenizerJson) {
    const auto text = edited.find("tokenizer.json");
    return read_tokenizer_json(text == edited.end() ? read_json(file, kMaxTokenizerBytes)
                                                    : parse_json(text->second, where),
                               where, tokens);
  }
  const std::string bytes = read_small_file(file, kMaxTokenizerBytes);
  return kind == TokenizerKind::kTiktoken ? read_tiktoken(bytes, where, tokens)
                                          : read_sentencepiece(bytes, where, tokens);
}

// Returns the id of a special token that other files name, or `own` if they do not.
int64_t named_id(const SpecialName& name, const TokenizerModel& model, int64_t own) {
  if (!name.is_named) {
    return own;
  }
  const int64_t id = name.text.empty() ? name.id : model.find(name.text);
  return model.has(id) ? id : -1;
}

constexpr size_t kMaxWholeBytes = size_t{4} << 20;

// sentencepiece allocates about 170 bytes per byte of text.
void check_length(std::string_view text) {
  USER_ERROR_IF(text.size() > kMaxWholeBytes,
                "{:.1f} MB of text that cannot be cut at spaces are too much for the tokenizer, "
                "which takes at most {:.1f} MB at once; split the record",
                static_cast<double>(text.size()) / 1e6, static_cast<double>(kMaxWholeBytes) / 1e6);
}

std::vector<int64_t> encode_whole(const Tokenizer& tokenizer, std::string_view text) {
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
  const std::vector<int64_t> ids = tokenizer.model_->encode("a");
  const std::string first = ids.empty() ? "" : tokenizer.model_->piece(ids.front());
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
  bos_id_ = model_->bos_id();
  eos_id_ = model_->eos_id();
  SpecialNames names = read_special_names(folder);
  if (kind_ == TokenizerKind::kSentencepiece) {  // ids of config.json are not needed
    for (SpecialName* name : {&names.bos, &names.eos}) {
      name->is_named = name->is_named && name->id < 0;
    }
  }
  bos_id_ = named_id(names.bos, *model_, bos_id_);
  eos_id_ = named_id(names.eos, *model_, eos_id_);
  if (kind_ == TokenizerKind::kSentencepiece) {
    adds_bos_ = names.adds_bos.value_or(false) && bos_id_ >= 0;
    return;
  }
  sets_adds_bos_ = names.adds_bos.has_value();
  const auto before = model_->before_text();
  if (kind_ == TokenizerKind::kTokenizerJson) {
    names.adds_bos.reset();
  }
  adds_bos_ = names.adds_bos.value_or(!before.empty() && before.front() == bos_id_) && bos_id_ >= 0;
}

void Tokenizer::read_stop_ids(const fs::path& folder) {
  for (const char* file : {"generation_config.json", "config.json"}) {
    if (stop_ids_.empty()) {
      stop_ids_ = optional_ids(read_optional_object(folder / file), "eos_token_id",
                               (folder / file).string());
    }
  }
  std::erase_if(stop_ids_, [](int64_t id) { return id < 0; });
  if (eos_id_ >= 0 && std::find(stop_ids_.begin(), stop_ids_.end(), eos_id_) == stop_ids_.end()) {
    stop_ids_.insert(stop_ids_.begin(), eos_id_);
  }
}

std::vector<int64_t> Tokenizer::encode_marked(std::string_view text,
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

std::map<std::string, std::string> stock_tokenizer_files(const fs::path& folder) try {
  const fs::path file = folder / "tokenizer.model", config_file = folder / "tokenizer_config.json";
  const Tokenizer tokenizer = Tokenizer::load(folder, 0);
  OrderedJson config = {{"add_bos_token", true}, {"legacy", false}};
  if (fs::exists(config_file)) {
    config = parse_ordered_json(read_small_file(config_file), config_file.string());
  }
  const bool adds_bos = read_special_names(folder).adds_bos.value_or(!fs::exists(config_file));
  const bool is_llama = config.value("tokenizer_class", "Llama").starts_with("Llama");
  const Json json = tokenizer.kind() != TokenizerKind::kSentencepiece || !is_llama
                        ? Json()
                        : sentencepiece_as_json(read_small_file(file, kMaxTokenizerBytes),
                                                file.string(), read_folder_tokens(folder, {}),
                                                adds_bos ? tokenizer.bos_id() : -1);
  if (json.is_null()) {
    return {};
  }
  config["tokenizer_class"] = "PreTrainedTokenizerFast";  // LLaMA's would not read all of `json`
  for (const auto& [key, id] :
       {std::pair("bos_token", tokenizer.bos_id()), {"eos_token", tokenizer.eos_id()}}) {
    config.emplace(key, id < 0 ? OrderedJson()
                               : OrderedJson(tokenizer.piece(id)));  // unless the file names it
  }
  config.emplace("unk_token", json["model"]["unk_token"].get<std::string>());
  for (const Json& token : json["added_tokens"]) {  // so that none becomes a normalized one
    OrderedJson flags(token);
    flags.erase("id");
    config["added_tokens_decoder"][std::to_string(token["id"].get<int64_t>())] = flags;
  }
  return {{"tokenizer.json", json.dump() + "\n"}, {"tokenizer_config.json", config.dump(2) + "\n"}};
} catch (const std::exception&) {  // such folders are copied as they are
  return {};
}

std::string special_token_words(const fs::path& folder) {
  std::string words;
  for (const char* name :
       {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"}) {
    words += fmt::format(" {} {}", name, read_optional_object(folder / name).dump());
  }
  const Json config = read_optional_object(folder / "config.json");
  for (const char* key : {"bos_token_id", "eos_token_id", "rope_scaling"}) {
    words += fmt::format(" {} {}", key, config.value(key, Json()).dump());
  }
  return words;
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

// transformers reads neither special_tokens_map.json nor added_tokens.json where it finds an
// "added_tokens_decoder", which therefore gets their tokens too.
EditedFiles with_special_tokens(const fs::path& folder, const std::vector<std::string>& tokens) {
  const fs::path file = tokenizer_file(folder);
  const bool is_json = file.filename() == "tokenizer.json";
  USER_ERROR_IF(!is_json && !has_sentencepiece_model(folder),
                "--add-tokens: {} has no tokenizer that takes tokens: a tokenizer.json or a "
                "sentencepiece model, not a tiktoken file",
                folder.string());
  const auto model = read_model(file, file_kind(file));
  std::vector<AddedToken> all = read_folder_tokens(folder, {}).added;  // not of tokenizer.json
  for (AddedToken& token : all) {
    token.id = model->find(token.content);
  }
  const size_t known = all.size();
  int64_t next = model->vocab_size();
  for (const auto& token : tokens) {
    constexpr std::string_view kSpace = " \t\r\n";
    USER_ERROR_IF(
        token.find_first_not_of(kSpace) != 0 || kSpace.find(token.back()) < 4 ||
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
    Json entry = {{"content", token.content},       {"single_word", token.single_word},
                  {"lstrip", token.lstrip},         {"rstrip", token.rstrip},
                  {"normalized", token.normalized}, {"special", token.special}};
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
  return take(text);
}

std::string TextStream::finish() { return take(tokenizer_.decode(ids_)); }

// A later token may invalidate a run of byte tokens; `text` is then shorter than the returned text.
std::string TextStream::take(const std::string& text) {
  if (given_.starts_with(text)) {
    return "";
  }
  std::string more = text_after(given_, text);
  given_ = text;
  return more;
}

std::string text_after(const std::string& before, const std::string& whole) {
  const auto differs =
      std::mismatch(before.begin(), before.end(), whole.begin(), whole.end()).second;
  auto at = static_cast<size_t>(differs - whole.begin());
  while (at > 0 && at < whole.size() && is_continuation_byte(whole[at])) {
    --at;
  }
  return whole.substr(at);
}

WordEncoder::WordEncoder(std::shared_ptr<const Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)), cache_(std::make_unique<WordCache>()) {}

WordEncoder::~WordEncoder() = default;

std::vector<int64_t> WordEncoder::encode(std::string_view text) {
  if (tokenizer_->kind() != TokenizerKind::kSentencepiece) {
    return tokenizer_->encode(text);
  }
  const WordRule rule = tokenizer_->word_rule(text);
  // U+2581 in the text itself would count as a space; invalid UTF-8 may decode differently if
  // split.
  if (rule == WordRule::kNone || text.find(kSpaceMark) != std::string_view::npos ||
      find_invalid_utf8(text) != kValidUtf8) {
    return encode_whole(*tokenizer_, text);
  }
  std::vector<int64_t> ids;
  const bool collapses = rule == WordRule::kCollapses;
  // The tokenizer puts a space before every text, so one of the spaces before a word is dropped,
  // except before the first word.
  for (size_t at = 0; at < text.size();) {
    const size_t letter = std::min(text.find_first_not_of(' ', at), text.size());
    size_t end = std::min(text.find(' ', letter), text.size());
    if (collapses) {
      if (letter < end) {
        add_word(text.substr(letter, end - letter), ids);
      }
    } else {
      if (text.find_first_not_of(' ', end) == std::string_view::npos) {
        end = text.size();  // trailing spaces stay with their word
      }
      const size_t begin = at == 0 ? 0 : at + 1;
      add_word(text.substr(begin, end - begin), ids);
    }
    at = end;
  }
  return ids;
}

std::vector<int64_t> WordEncoder::encode_marked(std::string_view text,
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
  return tokenizer_->encode_marked(text, plain);
}

void WordEncoder::add_word(std::string_view word, std::vector<int64_t>& ids) {
  cache_->append(word, ids, [this](std::string_view text, std::vector<int64_t>& found) {
    const auto word_ids = encode_whole(*tokenizer_, text);
    found.insert(found.end(), word_ids.begin(), word_ids.end());
  });
}

}  // namespace moe::io
