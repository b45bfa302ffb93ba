#pragma once
// The stages of tokenizer.json before and after BPE: "normalizer", "pre_tokenizer",
// "post_processor" and "decoder". Each is an object with a "type", or null, which does nothing
// unless noted. `where` names file and stage in errors ("tokenizer.json: normalizer"). Readers
// throw UserError, which lists the supported types, for any other type. Normalizers, pre-tokenizers
// and decoders are thread-safe.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::io {

// Maps well-formed UTF-8 to well-formed UTF-8. Throws UserError if the text grows more than
// 64-fold.
using Normalizer = std::function<std::string(std::string)>;

// Reads NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip, Lowercase and a Sequence of them.
Normalizer read_normalizer(const Json& json, const std::string& where);

struct Word {
  std::string_view text;
  bool begins_text = false;  // the word is the beginning of the user's text
};

// Words in order, and the texts of words that a pre-tokenizer rewrites.
struct Words {
  std::vector<Word> list;
  std::deque<std::string> written;  // a deque does not move its elements
};

// Splits a normalized text into the words that BPE merges; no token spans two words. Empty words
// are dropped.
using PreTokenizer = std::function<void(Words&)>;

// Reads ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit and a
// Sequence of them. null: the text is one word.
PreTokenizer read_pre_tokenizer(const Json& json, const std::string& where);

// Return the two pre-tokenizers of byte-level models: one that makes each match of
// `expression` a word, and one that spells bytes as characters (append_byte_level()).
PreTokenizer split_isolated(const std::string& expression, const std::string& where);
PreTokenizer bytes_as_characters();

// The special tokens around a single text. Pairs of texts are not supported.
struct SpecialTokens {
  std::vector<int64_t> before, after;
};

// Reads TemplateProcessing, ByteLevel (which only shifts offsets) and a Sequence of them. Throws
// UserError if a template does not have the text exactly once.
SpecialTokens read_post_processor(const Json& json, const std::string& where);

// Maps the texts of tokens, well-formed UTF-8, to texts whose concatenation is the decoded text.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// Reads ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and a Sequence of them. null joins
// the texts by spaces.
Decoder read_decoder(const Json& json, const std::string& where);

// Returns a decoder of characters that spell bytes (from_byte_level()).
Decoder characters_as_bytes();

}  // namespace moe::io
