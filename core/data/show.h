#pragma once
// An example as the model will see it, for a person: its tokens in their pieces, and which of them
// carry loss.

#include <functional>
#include <string>

#include "core/data/examples.h"

namespace moe::data {

// `piece` names a token: "▁Say", "<0x0A>", "</s>". Tokens stand apart by spaces. Those that carry
// loss are green with `colour`, else each run of them stands between ⟦ and ⟧; a token that is
// learned as another one shows both, "a→b". The first line says `where` the example comes from and
// counts its tokens; everything ends with a newline, and nothing in it can move a terminal's
// cursor.
std::string show_example(const Example& example, const std::string& where,
                         const std::function<std::string(int64_t)>& piece, bool colour);

}  // namespace moe::data
