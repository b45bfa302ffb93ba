#pragma once
// Interface of the kinds of tokenizers, and the readers of their files. Other folders use class
// Tokenizer (core/tokenizer/tokenizer.h).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::io {

// Bytes [begin, end) of a text.
struct TextRange {
  size_t begin = 0, end = 0;
  bool operator==(const TextRange&) const = default;
};

// Returns the parts of `ranges` in bytes [begin, end), counted from `begin`.
inline std::vector<TextRange> slice_ranges(const std::vector<TextRange>& ranges, size_t begin,
                                           size_t end) {
  std::vector<TextRange> parts;
  for (const TextRange& range : ranges) {
    if (range.begin < end && begin < range.end) {
      parts.push_back({std::max(range.begin, begin) - begin, std::min(range.end, end) - begin});
    }
  }
  return parts;
}

// Returns the first byte at or after `at` that is in one of `ranges`, which are sorted and
// disjoint; npos if there is none.
inline size_t next_in_ranges(const std::vector<TextRange>& ranges, size_t at) {
  const auto next = std::partition_point(ranges.begin(), ranges.end(),
                                         [&](const TextRange& range) { return range.end <= at; });
  return next == ranges.end() ? std::string_view::npos : std::max(at, next->begin);
}

// Part [begin, end) of a text: the token `id`, or text between tokens if `id` is -1.
struct TokenOrText {
  int64_t id = -1;
  size_t begin = 0, end = 0;
};

// An added token: a text such as <s> or <|eot_id|> that is a token wherever it occurs.
struct AddedToken {
  int64_t id = -1;  // -1: the next free id
  std::string content;
  bool single_word = false;             // matches only if no letter, digit or mark is adjacent
  bool lstrip = false, rstrip = false;  // includes the white space before or after it
  bool normalized = true;               // is matched in its normalized form, after normalization
  bool special = false;                 // decoding skips it
  std::string normal_form = {};         // the text that is matched and decoded
};

// Settings of a tokenizer from the other files of its folder.
struct FolderTokens {
  std::vector<AddedToken> added = {};  // in the order of transformers
  // Places where sentencepiece prepends a space ("add_prefix_space" and "legacy" of
  // tokenizer_config.json). kFirst: at the beginning of a text; kAlways: also after special tokens.
  enum class Prefix { kNever, kFirst, kAlways } prefix = Prefix::kFirst;
  bool is_llama31 = true;  // Meta's tiktoken file has the special tokens of Llama 3.1, not 3.0
};

// Rule by which a sentencepiece model can encode a text word by word. A BPE model that normalizes
// only spaces and has no piece with a space after another letter never merges across words, so the
// ids of a text are the concatenated ids of its words. LLaMA's model is an example.
enum class WordRule {
  kNone,       // encode whole texts only
  kKeeps,      // every space counts
  kCollapses,  // spaces at the ends are dropped, a run of spaces is one (remove_extra_whitespaces)
};

class TokenizerModel {
 public:
  TokenizerModel() = default;
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;
  virtual ~TokenizerModel() = default;

  // Returns the ids of `text`. No part that overlaps one of `plain` becomes a special token.
  // `begins_text` is false after a special token.
  virtual std::vector<int64_t> encode(std::string_view text,
                                      const std::vector<TextRange>& plain = {},
                                      bool begins_text = true) const = 0;
  // Splits `text` at its special tokens that do not overlap `plain`. Texts between tokens are not
  // empty. A token that includes white space may begin before the end of the previous one.
  virtual std::vector<TokenOrText> split(std::string_view text,
                                         const std::vector<TextRange>& plain) const = 0;
  virtual std::string decode(const std::vector<int64_t>& ids) const = 0;

  virtual bool has(int64_t id) const = 0;
  virtual std::string piece(int64_t id) const = 0;  // requires has(id)
  virtual std::string bytes(int64_t id) const = 0;
  virtual int64_t find(const std::string& token) const = 0;  // the id of a token's text, or -1
  // Returns the id of a token that split() finds, or -1.
  virtual int64_t special_id(const std::string& token) const = 0;
  virtual int64_t vocab_size() const = 0;

  // BOS and EOS of the tokenizer's file, or -1.
  virtual int64_t bos_id() const = 0;
  virtual int64_t eos_id() const = 0;
  // Return the special tokens that the file puts before and after a text.
  virtual std::vector<int64_t> before_text() const { return {}; }
  virtual std::vector<int64_t> after_text() const { return {}; }

  // Returns the rule of the model; kNone if `text` contains an added token, which must not be cut.
  virtual WordRule word_rule(std::string_view /*text*/) const { return WordRule::kNone; }
};

// Reads tokenizer.model of LLaMA and LLaMA-2 by the sentencepiece library. Throws UserError, which
// begins with `where`, if `bytes` are no serialized ModelProto.
std::unique_ptr<TokenizerModel> read_sentencepiece(std::string_view bytes, const std::string& where,
                                                   const FolderTokens& tokens = {});

// Returns the rule of `model`, a serialized ModelProto (sentencepiece_model.proto); kNone for
// anything that is not understood. The library does not provide this.
WordRule find_word_rule(std::string_view model);

// Returns a tokenizer.json that gives the tokenizers library the ids of read_sentencepiece(),
// except that the text of a special token becomes that token. `bos` precedes each text unless it is
// -1. Returns null unless find_word_rule() has a rule for the model and a space precedes a text.
Json sentencepiece_as_json(std::string_view bytes, const std::string& where,
                           const FolderTokens& tokens, int64_t bos);

// Reads tokenizer.json, the file of the tokenizers library. Ids and decoded texts are those of its
// release 0.23, except for recently assigned code points (patterns.h, unicode.h). Ignores
// truncation and padding. Throws UserError for a model other than BPE, dropout, prefixes and
// suffixes of subwords, a stage of an unsupported type, and a merge or unknown token that is not in
// the vocabulary. Added tokens that are not in the vocabulary get the next ids in order; their
// "id" is ignored.
std::unique_ptr<TokenizerModel> read_tokenizer_json(const Json& json, const std::string& where,
                                                    const FolderTokens& tokens = {});

// Reads Meta's tokenizer.model of Llama 3, a tiktoken file: one line per token with its bytes in
// base64, a space and its rank. The rank is the id; the pair whose concatenation has the lowest
// rank merges. The file lacks the regular expression that splits words and the 256 special tokens
// after its 128,000 tokens; both are those of Meta's published tokenizer. Throws UserError for a
// broken line, a missing or repeated rank, a number of tokens other than Llama 3's, and a byte that
// is no token.
std::unique_ptr<TokenizerModel> read_tiktoken(std::string_view bytes, const std::string& where,
                                              const FolderTokens& tokens = {});

// Returns true if the first line of `bytes` is a line of a tiktoken file.
bool is_tiktoken(std::string_view bytes);

}  // namespace moe::io
