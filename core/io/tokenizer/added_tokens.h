#pragma once
// The "added_tokens" of tokenizer.json: texts that are tokens wherever they stand, before anything
// else looks at a text (<s>, <|eot_id|>). They are found leftmost first, the longest of those that
// begin at one place.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"
#include "core/io/tokenizer/normalizers.h"
#include "core/io/tokenizer/text_range.h"
#include "core/io/tokenizer/vocabulary.h"

namespace moe::io {

struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool single_word = false;             // only where no letter, digit or mark touches it
  bool lstrip = false, rstrip = false;  // takes white space before or behind it along
  bool normalized = true;        // is looked for, in its normalized form, after normalization
  bool special = false;          // decoding leaves it out
  std::string normal_form = {};  // `content` as it is looked for and decoded
};

// Part [begin, end) of a text: the token `id`, or text between tokens where it is kNone.
struct TokenOrText {
  int64_t id = Vocabulary::kNone;
  size_t begin = 0, end = 0;
};

class AddedTokens {
 public:
  AddedTokens() = default;
  // `model`: the vocabulary that may hold some of them already. UserError naming `where`: an id
  // that is not the one by which the model knows the text, two tokens that look alike, one that
  // normalization empties.
  AddedTokens(std::vector<AddedToken> tokens, const Normalizer& normalizer, const Vocabulary& model,
              const std::string& where);

  // Cut `text`, well-formed UTF-8, at the tokens that are looked for before normalization, and at
  // those that are looked for after it. Parts may be empty of text, and a token that takes white
  // space along may begin before the end of the one before it. What touches one of `plain`, which
  // people wrote, is no special token.
  std::vector<TokenOrText> split_raw(std::string_view text,
                                     const std::vector<TextRange>& plain = {}) const {
    return split(text, plain, raw_, plain_raw_);
  }
  std::vector<TokenOrText> split_normalized(std::string_view text,
                                            const std::vector<TextRange>& plain = {}) const {
    return split(text, plain, normalized_, plain_normalized_);
  }

  const AddedToken* find(int64_t id) const;  // null where none has the id
  int64_t find(std::string_view content) const;
  bool is_special(std::string_view text) const;
  int64_t ids_end() const;  // one more than the greatest id, 0 where there are none

 private:
  // Texts as a tree of bytes. Node 0 is the root.
  struct Tree {
    struct Node {
      std::map<uint8_t, size_t> next;
      int64_t id = Vocabulary::kNone;
    };
    std::vector<Node> nodes = {Node()};
    std::vector<bool> begins = std::vector<bool>(256);  // whether a text begins with the byte

    bool add(std::string_view text, int64_t id);  // false: it is there already
    // The longest text that stands at `at`; end = at where there is none.
    TokenOrText longest(std::string_view text, size_t at) const;
  };

  std::vector<TokenOrText> split(std::string_view text, const std::vector<TextRange>& plain,
                                 const Tree& all, const Tree& not_special) const;

  std::map<int64_t, AddedToken> tokens_;
  std::map<std::string, int64_t, std::less<>> ids_;
  Tree raw_, normalized_, plain_raw_, plain_normalized_;  // the plain ones without special tokens
};

// The list in tokenizer.json; null and absent: none.
std::vector<AddedToken> read_added_tokens(const Json& json, const std::string& where);

}  // namespace moe::io
