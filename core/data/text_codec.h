#pragma once
// How text becomes ids, as functions, so that the readers of data know no tokenizer and tests have
// one that they can do in their heads.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/filled_text.h"

namespace moe::io {
class Tokenizer;
}

namespace moe::data {

struct TextCodec {
  std::function<std::vector<int64_t>(std::string_view)> encode;  // adds neither BOS nor EOS
  int64_t bos = -1, eos = -1;  // -1: none; texts are put together without a BOS then
  bool leading_space = false;  // encode() puts a space before every text, as sentencepiece does
  // For chat forms: io::Tokenizer::encode_plain(), and the id of a special token by its text, -1
  // where there is none. Without them encode() serves, and nothing is a special token.
  std::function<std::vector<int64_t>(std::string_view, bool begins_text)> encode_plain = {};
  std::function<int64_t(const std::string&)> special = {};
  // For the other templates: io::Tokenizer::encode_template(). Without it encode() serves.
  std::function<std::vector<int64_t>(const FilledText&)> encode_template = {};

  std::vector<int64_t> encode_filled(const FilledText& filled) const {
    return encode_template ? encode_template(filled) : encode(filled.text);
  }
};

// Of a tokenizer, which it keeps; words that were there before are remembered
// (io::WordEncoder).
TextCodec codec_of(const std::shared_ptr<const io::Tokenizer>& tokenizer);

}  // namespace moe::data
