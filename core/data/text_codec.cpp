#include "core/data/text_codec.h"

#include "core/tokenizer/tokenizer.h"

namespace moe::data {

TextCodec codec_of(const std::shared_ptr<const io::Tokenizer>& tokenizer) {
  const auto words = std::make_shared<io::WordEncoder>(tokenizer);
  const bool knows_no_marks = tokenizer->kind() == io::TokenizerKind::kSentencepiece;
  return {[words](std::string_view text) { return words->encode(text); },
          tokenizer->bos_id(),
          tokenizer->eos_id(),
          tokenizer->adds_space(),
          [words, tokenizer, knows_no_marks](std::string_view text, bool begins_text) {
            return knows_no_marks ? words->encode(text)
                                  : tokenizer->encode_plain(text, begins_text);
          },
          [tokenizer](const std::string& mark) { return tokenizer->special_id(mark); },
          [words, tokenizer, knows_no_marks](const FilledText& filled) {
            return knows_no_marks ? words->encode(filled.text)
                                  : tokenizer->encode_template(filled.text, filled.written);
          }};
}

}  // namespace moe::data
