#pragma once
// LLaMA's own sentencepiece tokenizer. Encoding adds no BOS or EOS: who wants them adds bos_id() or
// eos_id().

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/word_rule.h"

namespace moe::io {

class Tokenizer {
 public:
  // Loads FOLDER/tokenizer.model. UserError when it is missing (saying what still works with
  // tokenizer.json alone), broken, or when its size exceeds `vocab_size` of the model (0 = do not
  // check). A smaller one is fine: models pad their embeddings.
  static Tokenizer load(const std::filesystem::path& folder, int64_t vocab_size);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // Safe to call from several threads. Bytes that are not UTF-8 become U+FFFD, as sentencepiece
  // reads them: never an error (who must refuse them asks find_invalid_utf8).
  std::vector<int64_t> encode(std::string_view text) const;
  // As the fast tokenizers of transformers print it without special tokens: control tokens (BOS,
  // EOS), the unknown one and ids beyond the vocabulary (a padded model may sample one) are left
  // out; then byte pieces in a row are text if all of them are UTF-8 together, else a U+FFFD each.
  std::string decode(const std::vector<int64_t>& ids) const;
  std::string piece(int64_t id)
      const;  // as stored, with U+2581 for a leading space; "<ID>" beyond the vocabulary
  int64_t bos_id() const;  // -1 where the model has none, as eos_id()
  int64_t eos_id() const;
  int64_t vocab_size() const;
  // Whether tokenizer_config.json asks for a BOS before every text ("add_bos_token": true); false
  // where it is absent.
  bool adds_bos() const { return adds_bos_; }
  WordRule word_rule() const { return word_rule_; }

 private:
  struct Model;
  Tokenizer();
  std::unique_ptr<Model> model_;
  bool adds_bos_ = false;
  WordRule word_rule_ = WordRule::kNone;
};

}  // namespace moe::io
