#pragma once
// A tokenizer in the form of the tokenizers library, for tokenizer.json and tiktoken files: the
// text is split at added tokens, normalized and split into words, and each word is merged by BPE.

#include <algorithm>
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

// Reads an added token from an object with "content" and flags. `is_special` is the default of the
// flag "special". Throws UserError that begins with `where`.
AddedToken read_added_token(const Json& json, bool is_special, const std::string& where);
// Returns the object from which read_added_token() reads `token`.
Json added_token_json(const AddedToken& token);

// The added tokens of a tokenizer, matched before any other stage: the leftmost and longest match
// wins.
class AddedTokens {
 public:
  AddedTokens() = default;
  // `find_id` returns the id of a text in the vocabulary, whose ids are below `ids_end`, or -1. A
  // new token gets the next id; a repeated one keeps its id and gets the new flags. Throws
  // UserError naming `where` if a token is too long, or if normalization makes it empty.
  AddedTokens(const std::vector<AddedToken>& tokens, const Normalizer& normalizer,
              const std::function<int64_t(const std::string&)>& find_id, int64_t ids_end,
              const std::string& where);

  // Splits `text`, well-formed UTF-8, at the tokens that are matched after (`is_normalized`) or
  // before normalization. Texts between tokens are not empty. A token that includes white space may
  // begin before the end of the previous one. Text that overlaps one of `plain` does not match a
  // special token.
  std::vector<TokenOrText> split(std::string_view text, bool is_normalized,
                                 const std::vector<TextRange>& plain) const;

  const AddedToken* find(int64_t id) const;  // null if no token has the id
  int64_t find(std::string_view content) const;
  bool is_special(std::string_view text) const;
  // Returns one more than the greatest id; 0 if there are none.
  int64_t ids_end() const { return tokens_.empty() ? 0 : tokens_.rbegin()->first + 1; }

 private:
  // A trie over bytes; node 0 is the root.
  struct Tree {
    struct Node {
      std::map<uint8_t, size_t> next;
      int64_t id = Vocabulary::kNone;
      bool is_special = false;
    };
    std::vector<Node> nodes = {Node()};
    std::vector<bool> begins = std::vector<bool>(256);  // by byte: a text begins with it

    void add(std::string_view text, int64_t id, bool is_special);
    // Returns the longest token at `at`, of the special ones only those that end by `special_end`.
    // id = kNone if there is none.
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
  bool is_byte_level = false;  // tokens are spelled by append_byte_level()
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
  bool has(int64_t id) const override {
    return parts_.added.find(id) != nullptr || parts_.bpe.vocabulary().has(id);
  }
  std::string piece(int64_t id) const override;
  std::string bytes(int64_t id) const override;
  int64_t find(const std::string& token) const override;
  int64_t special_id(const std::string& token) const override { return parts_.added.find(token); }
  int64_t vocab_size() const override {
    return std::max(parts_.added.ids_end(), parts_.bpe.vocabulary().ids_end());
  }
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
