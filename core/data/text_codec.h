#pragma once
// Text, filled templates and conversations -> token ids. A TextCodec is a set of functions, so that
// tests need no tokenizer.

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

// A rendered template. Special tokens are recognized in the template's own text, not in the data:
// "</s>" in a question is four characters.
struct FilledText {
  std::string text = {};
  std::vector<io::TextRange> written = {};  // ranges of the data; sorted, disjoint

  FilledText slice(size_t begin, size_t end) const;  // bytes [begin, end)
};

// A conversation rendered by a chat template (chat_template.h).
struct FilledChat {
  // Bytes [begin, end) carry loss, and so does the end of the turn (end_of_turn()), which is within
  // [end, turn_end).
  struct Learned {
    size_t begin = 0, end = 0, turn_end = 0;
  };
  FilledText text;
  std::vector<Learned> learned;  // ascending
};

// Returns the range that ends a turn: the first special token of `parts` (TextCodec::split) at or
// after the end of `learned`, else the text up to `turn_end` without trailing white space.
io::TextRange end_of_turn(const FilledChat& chat, const FilledChat::Learned& learned,
                          const std::vector<io::TokenOrText>& parts);

struct TextCodec {
  std::function<std::vector<int64_t>(std::string_view)> encode;  // adds neither BOS nor EOS
  int64_t bos = -1, eos = -1;                                    // -1: none; texts then have no BOS
  bool leading_space = false;  // encode() adds a space before every text, like sentencepiece
  std::string bos_text = {}, eos_text = {};  // empty: none
  // For chat templates: io::Tokenizer::split(), special_id() and encode_part(). Without them
  // encode() is used, and no text is a special token.
  std::function<std::vector<io::TokenOrText>(const FilledText&)> split = {};
  std::function<int64_t(const std::string&)> special = {};
  std::function<std::vector<int64_t>(std::string_view, const std::vector<io::TextRange>&,
                                     bool begins_text)>
      encode_part = {};
  // For the other templates: io::WordEncoder::encode_parsing_special(). Without it encode() is
  // used.
  std::function<std::vector<int64_t>(const FilledText&)> encode_template = {};

  std::vector<int64_t> encode_filled(const FilledText& filled) const {
    return encode_template ? encode_template(filled) : encode(filled.text);
  }
};

// Returns the codec of a tokenizer, which it shares. It caches the ids of words (io::WordEncoder).
TextCodec make_text_codec(const std::shared_ptr<const io::Tokenizer>& tokenizer);

struct ChatToken {
  int64_t id = 0;
  bool learned = false;
  bool operator==(const ChatToken&) const = default;
};

// Encodes the text of a conversation. No text of the data becomes a special token: "<|im_end|>" in
// a question is ten characters. A token that overlaps a range with loss carries loss.
std::vector<ChatToken> chat_tokens(const FilledChat& chat, const TextCodec& codec);

}  // namespace moe::data
