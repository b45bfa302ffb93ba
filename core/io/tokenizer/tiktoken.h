#pragma once
// Meta's own tokenizer.model of Llama 3, a file of tiktoken: a line for each token, its bytes in
// base64, a space, its rank. The rank is the id, and pairs merge whose bytes together have the
// lowest rank. What the file does not say comes from Meta's published tokenizer: how a text is cut
// into words, and the 256 special tokens behind the 128,000 of the file.

#include <memory>
#include <string>
#include <string_view>

#include "core/io/tokenizer/tokenizer_model.h"

namespace moe::io {

// Whether the first line of `bytes` is one of such a file.
bool is_tiktoken(std::string_view bytes);

// `where` opens every error. UserError: a broken line, a rank that is missing or twice there,
// another number of tokens than Llama 3's (such a file does not say how it cuts words), a byte that
// is no token.
std::unique_ptr<TokenizerModel> read_tiktoken(std::string_view bytes, const std::string& where);

}  // namespace moe::io
