#include "core/io/tokenizer/tokenizer.h"

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/io/tokenizer/sentencepiece.h"
#include "core/io/tokenizer/special_names.h"
#include "core/io/tokenizer/tiktoken.h"
#include "core/io/tokenizer/tokenizer_json.h"

namespace moe::io {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxTokenizerBytes = uint64_t{256} << 20;

bool begins_as_tiktoken(const fs::path& file) { return is_tiktoken(read_file_start(file, 1024)); }

TokenizerKind kind_of(const fs::path& file) {
  if (file.filename() == "tokenizer.json") {
    return TokenizerKind::kTokenizerJson;
  }
  return begins_as_tiktoken(file) ? TokenizerKind::kTiktoken : TokenizerKind::kSentencepiece;
}

std::unique_ptr<const TokenizerModel> read_model(const fs::path& file, TokenizerKind kind) {
  const std::string where = file.string();
  if (kind == TokenizerKind::kTokenizerJson) {
    return read_tokenizer_json(read_json(file, kMaxTokenizerBytes), where);
  }
  const std::string bytes = read_small_file(file, kMaxTokenizerBytes);
  return kind == TokenizerKind::kTiktoken ? read_tiktoken(bytes, where)
                                          : read_sentencepiece(bytes, where);
}

// The id of a special token that other files name, `own` where they do not.
int64_t id_of(const SpecialName& name, const TokenizerModel& model, int64_t own) {
  if (!name.is_named) {
    return own;
  }
  const int64_t id = name.text.empty() ? name.id : model.find(name.text);
  return model.has(id) ? id : -1;
}

// A text that begins with no space and yet has one in its first token was given it.
bool puts_space_first(const TokenizerModel& model) {
  const std::vector<int64_t> ids = model.encode("a");
  const std::string first = ids.empty() ? "" : model.piece(ids.front());
  return first.starts_with("\u2581") || first.starts_with("\u0120");
}

}  // namespace

Tokenizer Tokenizer::load(const fs::path& folder, int64_t vocab_size) {
  const fs::path file = tokenizer_file(folder);
  if (file.empty()) {
    throw UserError(
        "{}: has neither tokenizer.model nor tokenizer.json: text needs one of them; without them "
        "upcycling, inspecting and training on pre-tokenised rows work",
        folder.string());
  }
  Tokenizer tokenizer;
  tokenizer.kind_ = kind_of(file);
  tokenizer.model_ = read_model(file, tokenizer.kind_);
  if (vocab_size > 0 && tokenizer.vocab_size() > vocab_size) {
    throw UserError(
        "{}: has {} tokens, config.json says vocab_size {}: tokenizer and model do not belong "
        "together",
        file.string(), tokenizer.vocab_size(), vocab_size);
  }
  tokenizer.adds_space_ = puts_space_first(*tokenizer.model_);
  tokenizer.take_special_ids(folder);
  tokenizer.take_stop_ids(folder);
  return tokenizer;
}

void Tokenizer::take_special_ids(const fs::path& folder) {
  bos_id_ = model_->bos_id();
  eos_id_ = model_->eos_id();
  if (kind_ == TokenizerKind::kSentencepiece) {  // knows both itself
    const fs::path config = folder / "tokenizer_config.json";
    adds_bos_ =
        fs::exists(config) && get_bool(read_json(config), "add_bos_token", config.string(), false);
    return;
  }
  const SpecialNames names = read_special_names(folder);
  bos_id_ = id_of(names.bos, *model_, bos_id_);
  eos_id_ = id_of(names.eos, *model_, eos_id_);
  const auto before = model_->before_text();
  adds_bos_ = names.adds_bos.value_or(!before.empty() && before.front() == bos_id_) && bos_id_ >= 0;
}

void Tokenizer::take_stop_ids(const fs::path& folder) {
  stop_ids_ = read_stop_ids(folder);
  if (eos_id_ >= 0 && std::find(stop_ids_.begin(), stop_ids_.end(), eos_id_) == stop_ids_.end()) {
    stop_ids_.insert(stop_ids_.begin(), eos_id_);
  }
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
  const fs::path model = folder / "tokenizer.model", json = folder / "tokenizer.json";
  const bool has_json = fs::exists(json);
  if (fs::exists(model) && !(has_json && begins_as_tiktoken(model))) {
    return model;
  }
  return has_json ? json : fs::path();
}

std::optional<TokenizerKind> tokenizer_kind(const fs::path& folder) {
  const fs::path file = tokenizer_file(folder);
  return file.empty() ? std::nullopt : std::optional(kind_of(file));
}

std::string special_token_words(const fs::path& folder) {
  const auto kind = tokenizer_kind(folder);
  return !kind || kind == TokenizerKind::kSentencepiece ? std::string()
                                                        : read_special_names(folder).words();
}

}  // namespace moe::io
