#pragma once
// What every kind of tokenizer can do, whatever file it comes from. core/io/tokenizer/tokenizer.h
// is what the rest of the program uses, and says what each of these means.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/io/tokenizer/text_range.h"
#include "core/io/tokenizer/word_rule.h"

namespace moe::io {

class TokenizerModel {
 public:
  TokenizerModel() = default;
  TokenizerModel(const TokenizerModel&) = delete;
  TokenizerModel& operator=(const TokenizerModel&) = delete;
  virtual ~TokenizerModel() = default;

  virtual std::vector<int64_t> encode(std::string_view text) const = 0;
  // The same where no text becomes a special token; `begins_text`: nothing stands before it.
  virtual std::vector<int64_t> encode_plain(std::string_view text, bool begins_text) const = 0;
  // The same where no text that touches one of `plain` becomes a special token.
  virtual std::vector<int64_t> encode_template(std::string_view text,
                                               const std::vector<TextRange>& plain) const = 0;
  virtual std::string decode(const std::vector<int64_t>& ids) const = 0;

  virtual bool has(int64_t id) const = 0;
  virtual std::string piece(int64_t id) const = 0;  // of an id that it has
  virtual std::string bytes(int64_t id) const = 0;
  virtual int64_t find(const std::string& token) const = 0;  // the id of a token's text, or -1
  // Of a token that is looked for before a text is cut, or that no text can become; else -1.
  virtual int64_t special_id(const std::string& token) const = 0;
  virtual int64_t vocab_size() const = 0;

  // What its own file says of BOS and EOS; -1 where it has none.
  virtual int64_t bos_id() const = 0;
  virtual int64_t eos_id() const = 0;
  // The special tokens that its file puts around a text.
  virtual std::vector<int64_t> before_text() const { return {}; }
  virtual std::vector<int64_t> after_text() const { return {}; }

  virtual WordRule word_rule() const { return WordRule::kNone; }
};

// The bytes of text that a piece adds where U+2581 is a space and <0xE2> a byte.
std::string bytes_of_piece(const std::string& piece);

}  // namespace moe::io
