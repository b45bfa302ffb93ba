#pragma once
// The "post_processor" of tokenizer.json: the special tokens around a text.

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::io {

// Of a text by itself; pairs of texts are not encoded here.
struct SpecialTokens {
  std::vector<int64_t> before, after;

  // `ids` between the two.
  std::vector<int64_t> around(const std::vector<int64_t>& ids) const;
};

// `json` null: none. TemplateProcessing, ByteLevel (which only shifts offsets) and a Sequence of
// them; UserError naming any other, and a template that does not hold the text once.
SpecialTokens read_post_processor(const Json& json, const std::string& where);

}  // namespace moe::io
