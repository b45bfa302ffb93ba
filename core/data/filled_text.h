#pragma once
// A template's own words, which may spell special tokens, with what people wrote between them,
// which may not: "</s>" in a question is four characters.

#include <string>
#include <vector>

#include "core/tokenizer/tokenizer_model.h"

namespace moe::data {

struct FilledText {
  std::string text = {};
  std::vector<io::TextRange> written = {};  // by people; in order, apart from one another

  FilledText& own(const std::string& words);
  FilledText& data(const std::string& words);
  FilledText& append(const FilledText& other);
  FilledText stripped() const;  // as strip() in core/data/strip.h
};

}  // namespace moe::data
