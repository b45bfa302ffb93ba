#pragma once
// A tokenizer in the form of the tokenizers library: added tokens are split off, the rest is
// normalized and split into words, and each word is merged by BPE. The readers of tokenizer.json
// and of tiktoken files build one.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/bpe.h"
#include "core/tokenizer/stages.h"
#include "core/tokenizer/tokenizer_model.h"

namespace moe::io {

// Reads an added token, an object of its text and flags. `is_special` is for a token that does not
// say it. Throws UserError, opening with `where`.
AddedToken read_added_token(const Json& json, bool is_special, const std::string& where);

// The added tokens of a tokenizer, matched before any other stage: the leftmost match, and the
// longest of those that begin at the same place.
class AddedTokens {
 public:
  AddedTokens() = default;
  // `find_id` returns the id of a text in the vocabulary, which has the ids below `ids_end`. A
  // token that it lacks gets the next id; one that is named again keeps its id and gets the new
  // flags. Throws UserError naming `where` if a token is too long, or if normalization makes it
  // empty.
  AddedTokens(const std::vector<AddedToken>& tokens, const Normalizer& normalizer,
              const std::function<int64_t(const std::string&)>& find_id, int64_t ids_end,
              const std::string& where);

  // Splits `text`, well-formed UTF-8, at the tokens that are matched in normalized text, or at
  // those matched before normalization. Parts may be empty of text, and a token that includes white
  // space may begin before the end of the previous one. Text that overlaps one of `plain`, which
  // holds data, is no special token.
  std::vector<TokenOrText> split(std::string_view text, bool is_normalized,
                                 const std::vector<TextRange>& plain) const;

  const AddedToken* find(int64_t id) const;  // null if none has the id
  int64_t find(std::string_view content) const;
  bool is_special(std::string_view text) const;
  int64_t ids_end() const;  // one more than the greatest id; 0 if there are none

 private:
  // A trie over bytes. Node 0 is the root.
  struct Tree {
    struct Node {
      std::map<uint8_t, size_t> next;
      int64_t id = Vocabulary::kNone;
      bool is_special = false;
    };
    std::vector<Node> nodes = {Node()};
    std::vector<bool> begins = std::vector<bool>(256);  // by byte: some text begins with it

    void add(std::string_view text, int64_t id, bool is_special);
    // Returns the longest text that begins at `at`, of those that are not special or end at or
    // before `special_end`; end = at if there is none.
    TokenOrText longest(std::string_view text, size_t at, size_t special_end) const;
  };

  std::map<int64_t, AddedToken> tokens_;
  std::map<std::string, int64_t, std::less<>> ids_;
  Tree raw_, normalized_;  // matched before normalization, and after it
};

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
  std::vector<TokenOrText> split(std::string_view text,
                                 const std::vector<TextRange>& plain) const override {
    return parts_.added.split(text, /*is_normalized=*/false, plain);
  }
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
