#pragma once
// The tokenizer of a model folder, of whichever kind it is: LLaMA's sentencepiece model
// (sentencepiece.h), the tokenizer.json of the tokenizers library (tokenizer_json.h), or Llama 3's
// tiktoken file (tiktoken.h).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/tokenizer/tokenizer_model.h"

namespace moe::io {

enum class TokenizerKind { kSentencepiece, kTokenizerJson, kTiktoken };

class Tokenizer {
 public:
  // Loads FOLDER/tokenizer.model, or FOLDER/tokenizer.json where there is none or it is Llama 3's
  // tiktoken file. UserError when both are missing (saying what still works), one is broken or not
  // supported, or its ids exceed `vocab_size` of the model (0 = do not check). Fewer are fine:
  // models pad their embeddings.
  static Tokenizer load(const std::filesystem::path& folder, int64_t vocab_size);

  // Safe to call from several threads. Bytes that are not UTF-8 become U+FFFD: never an error (who
  // must refuse them asks find_invalid_utf8). Adds no BOS or EOS: who wants them adds bos_id() or
  // eos_id(). The text of a special token becomes that token, but not with sentencepiece.
  std::vector<int64_t> encode(std::string_view text) const { return model_->encode(text); }
  // The same of what people wrote between special tokens: no text becomes a special token. Without
  // `begins_text` a special token stands before it, where some kinds put no space first.
  std::vector<int64_t> encode_plain(std::string_view text, bool begins_text) const {
    return model_->encode_plain(text, begins_text);
  }
  // The same of a template with what people wrote put into it, the parts `plain` (in order, apart
  // from one another): a special token is one where the template alone spells it.
  std::vector<int64_t> encode_template(std::string_view text,
                                       const std::vector<TextRange>& plain) const {
    return model_->encode_template(text, plain);
  }
  // The id of a token that stands for more than its text, such as "<|eot_id|>"; -1 where `token` is
  // none.
  int64_t special_id(const std::string& token) const { return model_->special_id(token); }
  // `ids` with the special tokens around them that the file of the tokenizer puts there; a
  // sentencepiece model has only BOS, where adds_bos() says so.
  std::vector<int64_t> with_special(const std::vector<int64_t>& ids) const;
  // As the fast tokenizers of transformers print it without special tokens and without cleaning up
  // spaces. Ids beyond the vocabulary (a padded model may sample one) are left out too. Bytes that
  // are no UTF-8 become U+FFFD, of which a tokenizer.json says how many.
  std::string decode(const std::vector<int64_t>& ids) const { return model_->decode(ids); }
  // As stored, with U+2581 or U+0120 for a leading space; "<ID>" beyond the vocabulary.
  std::string piece(int64_t id) const;
  // The bytes of text that stand for `id` within a text; none beyond the vocabulary.
  std::string bytes(int64_t id) const { return model_->has(id) ? model_->bytes(id) : ""; }
  int64_t bos_id() const { return bos_id_; }  // -1 where the model has none, as eos_id()
  int64_t eos_id() const { return eos_id_; }
  // The tokens that end what a model generates: eos_id(), and those that read_stop_ids() names. A
  // chat model ends a turn by another token than a text.
  const std::vector<int64_t>& stop_ids() const { return stop_ids_; }
  int64_t vocab_size() const { return model_->vocab_size(); }  // one more than the greatest id
  // Whether a BOS comes before every text: as "add_bos_token" of tokenizer_config.json says; where
  // it says nothing, whether tokenizer.json puts one there.
  bool adds_bos() const { return adds_bos_; }
  // Whether encode() puts a space before every text.
  bool adds_space() const { return adds_space_; }
  TokenizerKind kind() const { return kind_; }
  WordRule word_rule() const { return model_->word_rule(); }

 private:
  Tokenizer() = default;
  void take_special_ids(const std::filesystem::path& folder);
  void take_stop_ids(const std::filesystem::path& folder);

  std::unique_ptr<const TokenizerModel> model_;
  TokenizerKind kind_ = TokenizerKind::kSentencepiece;
  int64_t bos_id_ = -1, eos_id_ = -1;
  std::vector<int64_t> stop_ids_;
  bool adds_bos_ = false, adds_space_ = false;
};

// The file that load() would read; empty where there is none.
std::filesystem::path tokenizer_file(const std::filesystem::path& folder);

// What kind that file is, by its name and first line; none where there is no file.
std::optional<TokenizerKind> tokenizer_kind(const std::filesystem::path& folder);

// What else ids of a text and of BOS and EOS depend on, as a text; empty for sentencepiece.
std::string special_token_words(const std::filesystem::path& folder);

}  // namespace moe::io
