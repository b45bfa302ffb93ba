#pragma once
// LLaMA's and LLaMA-2's own tokenizer.model, by the sentencepiece library.

#include <memory>
#include <string>
#include <string_view>

#include "core/io/tokenizer/tokenizer_model.h"

namespace moe::io {

// `where` opens every error. UserError: `bytes` are no serialised ModelProto.
std::unique_ptr<TokenizerModel> read_sentencepiece(std::string_view bytes,
                                                   const std::string& where);

}  // namespace moe::io
