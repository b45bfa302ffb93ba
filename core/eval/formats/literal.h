#pragma once
// Lists and dictionaries as Python and numpy print them: what Hugging Face's CSV export leaves of
// nested fields, "{'text': array(['a', 'b'], dtype=object)}" or "['x' 'y']".

#include <string>
#include <string_view>

#include "core/base/json.h"

namespace moe::eval {

// UserError, opened by `where`, for anything else: other calls, a list cut by "...", nesting beyond
// kMaxJsonDepth.
Json parse_literal(std::string_view text, const std::string& where);

}  // namespace moe::eval
