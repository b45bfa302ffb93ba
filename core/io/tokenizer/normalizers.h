#pragma once
// The "normalizer" of tokenizer.json: what is done to a text before anything is looked up in it.

#include <functional>
#include <string>

#include "core/base/json.h"

namespace moe::io {

// From well-formed UTF-8 to well-formed UTF-8. Safe to call from several threads. Throws UserError
// if the text grows beyond max_stage_bytes() (core/io/tokenizer/stage.h).
using Normalizer = std::function<std::string(std::string)>;

// `json` null: the normalizer that changes nothing. NFC, NFD, NFKC, NFKD, Prepend, Replace, Strip,
// Lowercase and a Sequence of them; UserError naming any other.
Normalizer read_normalizer(const Json& json, const std::string& where);

}  // namespace moe::io
