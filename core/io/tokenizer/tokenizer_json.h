#pragma once
// tokenizer.json, the file of the tokenizers library that folders of LLaMA's family ship today.
// Ids and decoded texts are those of that library (0.23), but for code points that Unicode assigned
// after the tables of the libraries used here (core/io/tokenizer/regex.h, unicode.h). Its
// truncation and padding are for batches and are left out of account.

#include <memory>
#include <string>

#include "core/base/json.h"
#include "core/io/tokenizer/tokenizer_model.h"

namespace moe::io {

// `where` opens every error. UserError: a model other than BPE, dropout, prefixes and suffixes of
// subwords, a stage of a type that is not supported, a merge or unknown token that the vocabulary
// lacks, ids that contradict one another.
std::unique_ptr<TokenizerModel> read_tokenizer_json(const Json& json, const std::string& where);

}  // namespace moe::io
