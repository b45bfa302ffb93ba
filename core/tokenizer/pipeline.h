#pragma once
// A tokenizer in the form of the tokenizers library: added tokens are split off, the rest is
// normalized and split into words, and each word is merged by BPE. The readers of tokenizer.json
// and of tiktoken files build one.

#include <string>
#include <vector>

#include "core/tokenizer/added_tokens.h"
#include "core/tokenizer/bpe.h"
#include "core/tokenizer/stages.h"
#include "core/tokenizer/tokenizer_model.h"

namespace moe::io {

struct PipelineParts {
  AddedTokens added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  SpecialTokens special;
  Decoder decoder;
  int64_t bos = -1, eos = -1;  // -1: none
  bool is_byte_level = false;  // tokens are spelled in characters that stand for bytes
};

class Pipeline : public TokenizerModel {
 public:
  explicit Pipeline(PipelineParts parts) : parts_(std::move(parts)) {}

  std::vector<int64_t> encode(std::string_view text, const std::vector<TextRange>& plain,
                              bool begins_text) const override;
  std::string decode(const std::vector<int64_t>& ids) const override;
  bool has(int64_t id) const override;
  std::string piece(int64_t id) const override;
  std::string bytes(int64_t id) const override;
  int64_t find(const std::string& token) const override;
  int64_t special_id(const std::string& token) const override { return parts_.added.find(token); }
  int64_t vocab_size() const override;
  int64_t bos_id() const override { return parts_.bos; }
  int64_t eos_id() const override { return parts_.eos; }
  std::vector<int64_t> before_text() const override { return parts_.special.before; }
  std::vector<int64_t> after_text() const override { return parts_.special.after; }

 private:
  void encode_text(std::string_view text, bool begins_text, bool is_plain,
                   std::vector<int64_t>& ids) const;
  void encode_words(std::string_view text, bool begins_text, std::vector<int64_t>& ids) const;

  PipelineParts parts_;
};

}  // namespace moe::io
