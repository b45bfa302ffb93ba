#pragma once
// The tokenizer of a model folder: LLaMA's sentencepiece model, the tokenizer.json of the
// tokenizers library, or Llama 3's tiktoken file (tokenizer_model.h).

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/tokenizer/bpe.h"
#include "core/tokenizer/tokenizer_model.h"

namespace moe::io {

// Texts that replace files of a tokenizer's folder, by file name.
using EditedFiles = std::map<std::string, std::string>;

enum class TokenizerKind { kSentencepiece, kTokenizerJson, kTiktoken };

class Tokenizer {
 public:
  // Loads FOLDER/tokenizer.json, or FOLDER/tokenizer.model if there is none, with the tokens that
  // tokenizer_config.json, special_tokens_map.json and added_tokens.json add. Throws UserError if
  // both are missing, or if a file is broken or not supported. Encoding throws UserError for ids
  // beyond `vocab_size` of the model (0: no limit).
  static Tokenizer load(const std::filesystem::path& folder, int64_t vocab_size,
                        const EditedFiles& edited = {});

  // Returns the ids of `text`, without BOS and EOS. Bytes that are not UTF-8 become U+FFFD. The
  // text of a special token becomes that token, except with sentencepiece. Thread-safe.
  std::vector<int64_t> encode(std::string_view text) const { return encode_part(text, {}, true); }
  // Encodes a part of a template with data in the ranges `plain` (sorted, disjoint). No text that
  // overlaps one of them becomes a special token. `begins_text` is false after a special token:
  // some kinds then prepend no space.
  std::vector<int64_t> encode_part(std::string_view text, const std::vector<TextRange>& plain,
                                   bool begins_text) const {
    std::vector<int64_t> ids = model_->encode(text, plain, begins_text);
    check_ids(ids);
    return ids;
  }
  // Splits a filled template at its special tokens (TokenizerModel::split()).
  std::vector<TokenOrText> split(std::string_view text, const std::vector<TextRange>& plain) const {
    return model_->split(text, plain);
  }
  // Encodes like encode(), but the text of a special token that does not overlap `plain` becomes
  // that token with sentencepiece too, as in transformers.
  std::vector<int64_t> encode_parsing_special(std::string_view text,
                                              const std::vector<TextRange>& plain = {}) const;
  // Returns the id of a special token such as "<|eot_id|>"; -1 if `token` is none.
  int64_t special_id(const std::string& token) const { return model_->special_id(token); }
  // Adds to `ids` the special tokens that the tokenizer's file puts around a text; with
  // sentencepiece that is BOS if adds_bos().
  std::vector<int64_t> with_special(const std::vector<int64_t>& ids) const;
  // Returns the text of `ids` like fast tokenizers of transformers with skip_special_tokens and
  // without clean_up_tokenization_spaces. Skips ids beyond the vocabulary, which a padded model may
  // sample. Bytes that are not UTF-8 become U+FFFD.
  std::string decode(const std::vector<int64_t>& ids) const { return model_->decode(ids); }
  // Returns the token as stored, with U+2581 or U+0120 for a leading space; "<ID>" beyond the
  // vocabulary.
  std::string piece(int64_t id) const;
  // Returns the bytes that `id` adds to a text; none beyond the vocabulary.
  std::string bytes(int64_t id) const { return model_->has(id) ? model_->bytes(id) : ""; }
  int64_t bos_id() const { return bos_id_; }  // -1 if there is none
  int64_t eos_id() const { return eos_id_; }  // -1 if there is none
  // Returns the tokens that end generated text: eos_id(), then "eos_token_id" of
  // generation_config.json, else of config.json. A chat model may end a turn and a text by
  // different tokens.
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }
  int64_t vocab_size() const { return model_->vocab_size(); }  // one more than the greatest id
  // Returns true if a BOS precedes every text, as in transformers 5: by tokenizer.json, or without
  // that file by "add_bos_token" of tokenizer_config.json.
  bool adds_bos() const { return adds_bos_; }
  // Returns true if tokenizer_config.json has "add_bos_token" and the tokenizer is not a
  // sentencepiece model.
  bool has_add_bos_setting() const { return has_add_bos_setting_; }
  // Returns true if encode() prepends a space to every text.
  bool adds_space() const { return adds_space_; }
  TokenizerKind kind() const { return kind_; }
  WordRule word_rule(std::string_view text) const { return model_->word_rule(text); }

 private:
  Tokenizer() = default;
  void check_ids(const std::vector<int64_t>& ids) const;
  void read_special_ids(const std::filesystem::path& folder);
  void read_stop_ids(const std::filesystem::path& folder);

  std::unique_ptr<const TokenizerModel> model_;
  TokenizerKind kind_ = TokenizerKind::kSentencepiece;
  int64_t bos_id_ = -1, eos_id_ = -1;
  std::vector<int64_t> stop_ids_;
  bool adds_bos_ = false, has_add_bos_setting_ = false, adds_space_ = false;
  int64_t limit_ = 0;  // of ids
};

// Returns the file that Tokenizer::load() would read; empty if there is none.
std::filesystem::path tokenizer_file(const std::filesystem::path& folder);

// Returns true if FOLDER/tokenizer.model is a sentencepiece model, also next to a tokenizer.json.
bool has_sentencepiece_model(const std::filesystem::path& folder);

// Returns the kind of tokenizer_file(), by its name and first line; nothing if there is none.
std::optional<TokenizerKind> tokenizer_kind(const std::filesystem::path& folder);

// Returns, as a text, all settings in `folder` outside the tokenizer's own file that affect ids. It
// is part of the key of a token cache.
std::string special_token_key(const std::filesystem::path& folder);

// Returns a tokenizer_config.json for a LLaMA tokenizer.model without one. Otherwise transformers
// chooses tokenizer class and BOS by model_type.
OrderedJson llama_tokenizer_config();

// Returns texts of tokenizer.json and tokenizer_config.json that give transformers the ids of
// FOLDER/tokenizer.model. Returns none if the folder has a tokenizer.json or a broken file, or
// if its model or "tokenizer_class" is not LLaMA's (sentencepiece_as_json()).
EditedFiles stock_tokenizer_files(const std::filesystem::path& folder);

// Splits the value of --add-tokens at commas; "\," is a comma of a token.
std::vector<std::string> split_tokens(const std::string& list);

// Returns the changed files of the folder's tokenizer after adding `tokens` as special tokens, with
// ids from Tokenizer::vocab_size() on; an existing token keeps its id. Throws UserError if a token
// is empty, repeated or surrounded by white space, or if the kind of tokenizer cannot be extended.
EditedFiles with_special_tokens(const std::filesystem::path& folder,
                                const std::vector<std::string>& tokens);

// Incremental decoder. A character may consist of the bytes of several tokens; it is returned when
// it is complete. Returned text does not change later.
class TextStream {
 public:
  // `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Appends `ids` and returns the text that they complete.
  std::string push(const std::vector<int64_t>& ids);
  // Returns the remaining text, whose last character may be incomplete.
  std::string finish() { return advance(tokenizer_.decode(ids_)); }

 private:
  std::string advance(const std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;
  std::string returned_;
};

// Returns the part of `text` after its longest common prefix with `before`, from the beginning of a
// character. Both are well-formed UTF-8.
std::string text_after(const std::string& before, const std::string& text);

// Encoder that returns the ids of Tokenizer::encode(), but many times faster with sentencepiece. If
// the model has a WordRule, it encodes word by word and caches the ids of words, in memory
// proportional to the ids. The other kinds of tokenizers cache words themselves.
class WordEncoder {
 public:
  explicit WordEncoder(std::shared_ptr<const Tokenizer> tokenizer)
      : tokenizer_(std::move(tokenizer)) {}

  // Thread-safe. Throws UserError if a text that cannot be split is so long that sentencepiece
  // needs gigabytes for it.
  std::vector<int64_t> encode(std::string_view text);
  // Encodes like Tokenizer::encode_parsing_special(). Thread-safe. Throws like encode().
  std::vector<int64_t> encode_parsing_special(std::string_view text,
                                              const std::vector<TextRange>& plain);

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  WordCache cache_;
};

}  // namespace moe::io
