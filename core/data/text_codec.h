#pragma once
// Text, filled templates and conversations -> token ids. A TextCodec is a set of functions, so that
// the readers of data depend on no tokenizer and tests use one that is computed by hand.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/tokenizer/tokenizer_model.h"

namespace moe::io {
class Tokenizer;
}

namespace moe::data {

// A template that is filled with data. The template's own text may spell special tokens; the data
// may not: "</s>" in a question is four characters.
struct FilledText {
  std::string text = {};
  std::vector<io::TextRange> written = {};  // the ranges of the data; sorted, disjoint

  FilledText slice(size_t begin, size_t end) const;  // bytes [begin, end)
};

// A conversation that a chat template has written (chat_template.h).
struct FilledChat {
  // Bytes [begin, end) carry loss, and so does what ends the turn before `turn_end`
  // (end_of_turn()).
  struct Learned {
    size_t begin = 0, end = 0, turn_end = 0;
  };
  FilledText text;
  std::vector<Learned> learned;  // ascending
};

// Returns the range of what ends a turn: the first special token of `parts` (TextCodec::split) at
// or after the end of `learned`, else the text up to `turn_end` without white space at its end.
io::TextRange end_of_turn(const FilledChat& chat, const FilledChat::Learned& learned,
                          const std::vector<io::TokenOrText>& parts);

struct TextCodec {
  std::function<std::vector<int64_t>(std::string_view)> encode;  // adds neither BOS nor EOS
  int64_t bos = -1, eos = -1;                                    // -1: none; texts then have no BOS
  bool leading_space = false;  // encode() puts a space before every text, as sentencepiece does
  std::string bos_text = {}, eos_text = {};  // empty: none
  // For chat templates: io::Tokenizer::split(), special_id() and encode_part(). Without them
  // encode() is used, and nothing is a special token.
  std::function<std::vector<io::TokenOrText>(const FilledText&)> split = {};
  std::function<int64_t(const std::string&)> special = {};
  std::function<std::vector<int64_t>(std::string_view, const std::vector<io::TextRange>&,
                                     bool begins_text)>
      encode_part = {};
  // For the other templates: io::WordEncoder::encode_marked(). Without it encode() is used.
  std::function<std::vector<int64_t>(const FilledText&)> encode_template = {};

  std::vector<int64_t> encode_filled(const FilledText& filled) const {
    return encode_template ? encode_template(filled) : encode(filled.text);
  }
};

// Returns the codec of a tokenizer, which it shares; the ids of words are cached
// (io::WordEncoder).
TextCodec make_text_codec(const std::shared_ptr<const io::Tokenizer>& tokenizer);

struct ChatToken {
  int64_t id = 0;
  bool learned = false;
  bool operator==(const ChatToken&) const = default;
};

// Encodes a conversation as a tokenizer does that is given its text, except that no text of the
// data becomes a special token: "<|im_end|>" in a question is ten characters. A token that
// overlaps a range that carries loss carries loss.
std::vector<ChatToken> chat_tokens(const FilledChat& chat, const TextCodec& codec);

}  // namespace moe::data
