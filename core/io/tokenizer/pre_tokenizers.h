#pragma once
// The "pre_tokenizer" of tokenizer.json: cuts a normalized text into the words that BPE merges,
// each by itself. No token reaches across two words.

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/json.h"

namespace moe::io {

struct Word {
  std::string_view text;
  bool begins_text = false;  // whether it is the beginning of what the user gave
};

// Words in order. What a pre-tokenizer writes anew is kept beside them.
struct Words {
  std::vector<Word> list;
  std::deque<std::string> written;  // never moves what it holds
};

// Safe to call from several threads, each with words of its own. Empty words are left out.
using PreTokenizer = std::function<void(Words&)>;

// `json` null: the text is one word. ByteLevel, Split, Digits, Metaspace, Punctuation, Whitespace,
// WhitespaceSplit and a Sequence of them; UserError naming any other.
PreTokenizer read_pre_tokenizer(const Json& json, const std::string& where);

// The two of which byte-level models are made: cut by `expression` with every match a word, and
// bytes written as characters (core/io/tokenizer/byte_level.h).
PreTokenizer split_isolated(const std::string& expression, const std::string& where);
PreTokenizer bytes_as_characters();

}  // namespace moe::io
