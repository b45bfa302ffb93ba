#pragma once
// The tokenizer of a model folder, of any kind: LLaMA's sentencepiece model, the tokenizer.json of
// the tokenizers library, or Llama 3's tiktoken file (tokenizer_model.h).

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/tokenizer_model.h"

namespace moe::io {

// Texts in place of files of a tokenizer's folder, by name.
using EditedFiles = std::map<std::string, std::string>;

enum class TokenizerKind { kSentencepiece, kTokenizerJson, kTiktoken };

class Tokenizer {
 public:
  // Loads FOLDER/tokenizer.json, or FOLDER/tokenizer.model if there is none, with the tokens that
  // tokenizer_config.json, special_tokens_map.json and added_tokens.json add. Throws UserError if
  // both are missing (naming what works without them), or if a file is broken or not supported.
  // Ids beyond `vocab_size` of the model (0: no limit) are errors where a text becomes them.
  static Tokenizer load(const std::filesystem::path& folder, int64_t vocab_size,
                        const EditedFiles& edited = {});

  // Returns the ids of `text`, without BOS and EOS. Bytes that are not UTF-8 become U+FFFD. The
  // text of a special token becomes that token, except with sentencepiece. Thread-safe.
  std::vector<int64_t> encode(std::string_view text) const { return encode_part(text, {}, true); }
  // Encodes a part of a template that is filled with data at the ranges `plain` (sorted,
  // disjoint): no text that overlaps one of them becomes a special token. `begins_text` is false
  // after a special token, where some kinds put no space first.
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
  // Encodes as encode() does, but the text of a special token that does not overlap `plain` becomes
  // that token with sentencepiece too, as in transformers.
  std::vector<int64_t> encode_marked(std::string_view text,
                                     const std::vector<TextRange>& plain = {}) const;
  // Returns the id of a special token such as "<|eot_id|>"; -1 if `token` is none.
  int64_t special_id(const std::string& token) const { return model_->special_id(token); }
  // Returns `ids` with the special tokens around them that the tokenizer's file puts there; with
  // sentencepiece that is BOS if adds_bos().
  std::vector<int64_t> with_special(const std::vector<int64_t>& ids) const;
  // Returns the text of `ids` as the fast tokenizers of transformers print it without special
  // tokens and without cleaning up spaces. Ids beyond the vocabulary, which a padded model may
  // sample, are skipped. Bytes that are not UTF-8 become U+FFFD.
  std::string decode(const std::vector<int64_t>& ids) const { return model_->decode(ids); }
  // Returns the token as stored, with U+2581 or U+0120 for a leading space; "<ID>" beyond the
  // vocabulary.
  std::string piece(int64_t id) const;
  // Returns the bytes of text that `id` stands for within a text; none beyond the vocabulary.
  std::string bytes(int64_t id) const { return model_->has(id) ? model_->bytes(id) : ""; }
  int64_t bos_id() const { return bos_id_; }  // -1 if the model has none, as eos_id()
  int64_t eos_id() const { return eos_id_; }
  // Returns the tokens that end generated text: eos_id(), then "eos_token_id" of
  // generation_config.json, or of config.json where that has none. A chat model ends a turn and a
  // text by different tokens.
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }
  int64_t vocab_size() const { return model_->vocab_size(); }  // one more than the greatest id
  // Returns true if a BOS precedes every text, as in transformers 5: if tokenizer.json puts one
  // there; without that file, "add_bos_token" of tokenizer_config.json.
  bool adds_bos() const { return adds_bos_; }
  // Returns true if a tokenizer file other than a sentencepiece model was read and
  // tokenizer_config.json has "add_bos_token".
  bool sets_adds_bos() const { return sets_adds_bos_; }
  // Returns true if encode() puts a space before every text.
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
  bool adds_bos_ = false, sets_adds_bos_ = false, adds_space_ = false;
  int64_t limit_ = 0;  // of ids
};

// Returns the file that Tokenizer::load() would read; empty if there is none.
std::filesystem::path tokenizer_file(const std::filesystem::path& folder);

// Returns true if the folder has a tokenizer.model of sentencepiece, used or not.
bool has_sentencepiece_model(const std::filesystem::path& folder);

// Returns the kind of that file, by its name and first line; nothing if there is none.
std::optional<TokenizerKind> tokenizer_kind(const std::filesystem::path& folder);

// Returns a text that differs wherever other files of `folder` give other tokens. Part of the key
// of a token cache.
std::string special_token_words(const std::filesystem::path& folder);

// Returns the tokenizer_config.json for a LLaMA tokenizer.model without one: transformers would
// pick tokenizer class and BOS by model_type.
OrderedJson llama_tokenizer_config();

// Splits the value of --add-tokens at commas; "\," is a comma of a token.
std::vector<std::string> split_tokens(const std::string& list);

// Returns the files of the folder's tokenizer with `tokens` as special tokens, with ids from
// Tokenizer::vocab_size() on; a text that is a token already keeps its id. Throws UserError if a
// token is empty, named twice or surrounded by white space, or if the tokenizer takes none.
EditedFiles with_special_tokens(const std::filesystem::path& folder,
                                const std::vector<std::string>& tokens);

// Decodes tokens that arrive one by one. A character may consist of several tokens' bytes; it is
// returned when it is complete, and returned text does not change later.
class TextStream {
 public:
  // `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // Returns the text that `ids` add.
  std::string push(const std::vector<int64_t>& ids);
  // Returns the text held back because its last character might be incomplete.
  std::string finish();

 private:
  std::string take(const std::string& text);

  const Tokenizer& tokenizer_;
  std::vector<int64_t> ids_;
  std::string given_;
};

// Returns the part of `whole` after its longest common prefix with `before`, from the beginning of
// a character on. Both are well-formed UTF-8.
std::string text_after(const std::string& before, const std::string& whole);

class WordCache;  // core/tokenizer/bpe.h

// Encodes as Tokenizer::encode() does, many times as fast with sentencepiece: where words cannot
// merge (WordRule) a text is encoded word by word and the ids of words are cached. Memory is then
// proportional to the ids. The other kinds of tokenizers cache words themselves.
class WordEncoder {
 public:
  explicit WordEncoder(std::shared_ptr<const Tokenizer> tokenizer);
  ~WordEncoder();

  // Thread-safe. Throws UserError if a text that cannot be split is so long that sentencepiece
  // would need gigabytes for it.
  std::vector<int64_t> encode(std::string_view text);
  // Encodes as Tokenizer::encode_marked() does. Thread-safe; throws as encode() does.
  std::vector<int64_t> encode_marked(std::string_view text, const std::vector<TextRange>& plain);

 private:
  void add_word(std::string_view word, std::vector<int64_t>& ids);

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<WordCache> cache_;
};

}  // namespace moe::io
