#pragma once
// Regular expressions as tokenizer.json writes them, by Oniguruma, which the tokenizers library
// uses too. Debian's Oniguruma knows Unicode 14: letters and digits that Unicode assigned later are
// neither here.

#include <memory>
#include <string>
#include <string_view>

#include "core/io/tokenizer/sections.h"

struct re_pattern_buffer;  // Oniguruma's name for a compiled expression

namespace moe::io {

class Regex {
 public:
  // UserError naming `where`: the pattern is none, or longer than 64 KiB.
  Regex(const std::string& pattern, const std::string& where);

  // Leftmost matches that do not overlap, and what lies between. An empty match counts only where
  // no match ends. `text` must be well-formed UTF-8. UserError: the search gives up, because the
  // pattern makes it try too many ways. Safe to call from several threads.
  Sections find(std::string_view text) const;

 private:
  std::shared_ptr<re_pattern_buffer> compiled_;
  std::string where_;
};

// Finds a text itself. An empty one matches between all characters, as an empty expression does.
Pattern literal_pattern(const std::string& text, const std::string& where);
Pattern regex_pattern(const std::string& pattern, const std::string& where);

}  // namespace moe::io
