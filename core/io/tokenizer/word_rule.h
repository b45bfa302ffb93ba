#pragma once
// Whether a sentencepiece model may be given a text word by word. Where it is BPE, changes nothing
// of its input but the spaces, and no piece has a space behind another letter, no merge ever joins
// two words: the ids of a text are those of its words in a row, exactly. LLaMA's is such a model.
// What the library does not tell is read from the model's own bytes (sentencepiece_model.proto).

#include <string_view>

namespace moe::io {

inline constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581, a space within a piece

enum class WordRule {
  kNone,       // only whole texts
  kKeeps,      // every space counts
  kCollapses,  // spaces at the ends are dropped, a run of them is one (remove_extra_whitespaces)
};

// `model` is a serialised ModelProto. Anything that is not understood: kNone.
WordRule word_rule_of(std::string_view model);

// Whether a piece holds a byte 0, on which the library ends the process while it builds its index.
bool has_piece_with_nul(std::string_view model);

}  // namespace moe::io
