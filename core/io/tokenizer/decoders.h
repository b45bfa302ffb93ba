#pragma once
// The "decoder" of tokenizer.json: from the texts of tokens back to one text.

#include <functional>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::io {

// From texts, well-formed UTF-8, to others that are the decoded text when they stand in a row.
using Decoder = std::function<std::vector<std::string>(std::vector<std::string>)>;

// `json` null: the texts with a space between them. ByteLevel, ByteFallback, Fuse, Metaspace,
// Replace, Strip and a Sequence of them; UserError naming any other.
Decoder read_decoder(const Json& json, const std::string& where);

// Characters that stand for bytes (core/io/tokenizer/byte_level.h) back to text.
Decoder characters_as_bytes();

}  // namespace moe::io
