#pragma once
// Text, filled templates and chat pieces -> token ids. A TextCodec is a set of functions, so that
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

// Returns `text` without the ASCII white space that Python's strip() and Jinja's trim remove.
std::string strip(std::string_view text);

// A template that is filled with data. The template's own text may spell special tokens; the data
// may not: "</s>" in a question is four characters.
struct FilledText {
  std::string text = {};
  std::vector<io::TextRange> written = {};  // the ranges of the data; sorted, disjoint

  FilledText& own(const std::string& words);   // appends text of the template
  FilledText& data(const std::string& words);  // appends data
  FilledText& append(const FilledText& other);
  FilledText stripped() const;  // as strip() of the text
};

// A part of a conversation in a chat form (templates.h).
struct ChatPiece {
  enum class Kind { kText, kMark, kBos, kEos };
  Kind kind = Kind::kText;
  std::string text = {};  // of a text or mark
  bool learned = false;   // carries loss
};

struct TextCodec {
  std::function<std::vector<int64_t>(std::string_view)> encode;  // adds neither BOS nor EOS
  int64_t bos = -1, eos = -1;                                    // -1: none; texts then have no BOS
  bool leading_space = false;  // encode() puts a space before every text, as sentencepiece does
  // For chat forms: io::Tokenizer::encode_plain(), and the id of a special token by its text, -1 if
  // there is none. Without them encode() is used, and nothing is a special token.
  std::function<std::vector<int64_t>(std::string_view, bool begins_text)> encode_plain = {};
  std::function<int64_t(const std::string&)> special = {};
  // For the other templates: io::Tokenizer::encode_template(). Without it encode() is used.
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

// Encodes the pieces of a conversation. A mark is its special token if the vocabulary has one, else
// text. Adjacent texts are encoded together, as a tokenizer does that is given the whole
// conversation, and no text becomes a special token: "<|im_end|>" in a question is ten characters.
// A token that spans two texts carries loss if the second one does.
std::vector<ChatToken> chat_tokens(const std::vector<ChatPiece>& pieces, const TextCodec& codec);

}  // namespace moe::data
