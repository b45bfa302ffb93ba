#pragma once
// The "added_tokens" of tokenizer.json: texts such as <s> and <|eot_id|> that are tokens wherever
// they occur, matched before any other stage. The leftmost match wins, then the longest.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/tokenizer/bpe.h"
#include "core/tokenizer/stages.h"
#include "core/tokenizer/tokenizer_model.h"

namespace moe::io {

struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool single_word = false;             // matches only if no letter, digit or mark is adjacent
  bool lstrip = false, rstrip = false;  // includes the white space before or after it
  bool normalized = true;               // is matched in its normalized form, after normalization
  bool special = false;                 // decoding skips it
  std::string normal_form = {};         // `content` as it is matched and decoded
};

// Part [begin, end) of a text: the token `id`, or text between tokens if `id` is kNone.
struct TokenOrText {
  int64_t id = Vocabulary::kNone;
  size_t begin = 0, end = 0;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `model` is the vocabulary, which may hold some of them already. Throws UserError naming `where`
  // if an id differs from the model's id of the text, if two tokens have the same text, or if
  // normalization makes one empty.
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer, const Vocabulary& model,
              const std::string& where);

  // Split `text`, well-formed UTF-8, at the tokens that are matched before normalization, and at
  // those matched after it. Parts may be empty of text, and a token that includes white space may
  // begin before the end of the previous one. Text that overlaps one of `plain`, which holds data,
  // is no special token.
  std::vector<TokenOrText> split_raw(std::string_view text,
                                     const std::vector<TextRange>& plain = {}) const {
    return split(text, plain, raw_, plain_raw_);
  }
  std::vector<TokenOrText> split_normalized(std::string_view text,
                                            const std::vector<TextRange>& plain = {}) const {
    return split(text, plain, normalized_, plain_normalized_);
  }

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
    };
    std::vector<Node> nodes = {Node()};
    std::vector<bool> begins = std::vector<bool>(256);  // by byte: some text begins with it

    bool add(std::string_view text, int64_t id);  // returns false if it is there already
    // Returns the longest text that begins at `at`; end = at if there is none.
    TokenOrText longest(std::string_view text, size_t at) const;
  };

  std::vector<TokenOrText> split(std::string_view text, const std::vector<TextRange>& plain,
                                 const Tree& all, const Tree& not_special) const;

  std::map<int64_t, AddedToken> tokens_;
  std::map<std::string, int64_t, std::less<>> ids_;
  Tree raw_, normalized_, plain_raw_, plain_normalized_;  // the plain ones lack special tokens
};

// Reads the list of tokenizer.json; null means none.
std::vector<AddedToken> read_added_tokens(const Json& json, const std::string& where);

}  // namespace moe::io
