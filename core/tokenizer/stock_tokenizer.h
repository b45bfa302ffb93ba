#pragma once
// Conversion of LLaMA's tokenizer.model to files of the tokenizers library.

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "core/base/json.h"
#include "core/tokenizer/tokenizer_model.h"

namespace moe::io {

// Returns a tokenizer.json by which the tokenizers library gives the ids of read_sentencepiece(),
// except that the text of a special token becomes that token. `bos` precedes each text unless it is
// -1. Returns null unless find_word_rule() has a rule for the model and a space precedes a text.
Json sentencepiece_as_json(std::string_view bytes, const std::string& where,
                           const FolderTokens& tokens, int64_t bos);

// Returns the files by which transformers gives the ids of FOLDER/tokenizer.model, by their names:
// tokenizer.json and tokenizer_config.json. None if the folder has a tokenizer.json or a broken
// file, or if its model or "tokenizer_class" is not LLaMA's (sentencepiece_as_json()).
std::map<std::string, std::string> stock_tokenizer_files(const std::filesystem::path& folder);

}  // namespace moe::io
