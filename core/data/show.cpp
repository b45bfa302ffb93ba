#include "core/data/show.h"

#include <fmt/format.h>

#include "core/base/terminal_text.h"
#include "core/base/utf8.h"

namespace moe::data {

namespace {

constexpr size_t kPiece_bytes = 200;

struct Marks {
  const char *open, *close;
};
constexpr Marks kColour = {"\033[32m", "\033[0m"};
constexpr Marks kBrackets = {"\u27E6", "\u27E7"};

// Nothing predicts the first token, so its label teaches nothing.
bool carries_loss(const Example& example, size_t position) {
  return position > 0 && position < example.labels.size() && example.labels[position] != kNoLoss;
}

std::string shown(const std::string& text, size_t max_bytes) {
  return terminal_text(printable(text, max_bytes), /*one_line=*/true);
}

}  // namespace

std::string show_example(const Example& example, const std::string& where,
                         const std::function<std::string(int64_t)>& piece, bool colour) {
  const Marks& marks = colour ? kColour : kBrackets;
  std::string tokens;
  size_t learned = 0;
  for (size_t t = 0; t < example.ids.size(); ++t) {
    const bool with_loss = carries_loss(example, t);
    learned += with_loss ? 1 : 0;
    tokens += t == 0 ? "" : " ";
    tokens += with_loss && !carries_loss(example, t - 1) ? marks.open : "";
    tokens += shown(piece(example.ids[t]), kPiece_bytes);
    if (with_loss && example.labels[t] != example.ids[t]) {
      tokens += "\u2192" + shown(piece(example.labels[t]), kPiece_bytes);
    }
    tokens += with_loss && !carries_loss(example, t + 1) ? marks.close : "";
  }
  return fmt::format("{}: {} tokens, {} with loss\n{}\n", shown(where, 4096), example.ids.size(),
                     learned, tokens);
}

}  // namespace moe::data
