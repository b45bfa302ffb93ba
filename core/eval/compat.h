#pragma once
// Versions of lm-evaluation-harness between which definitions and defaults changed.

#include <string>

namespace moe::eval {

enum class Compat { kCurrent, k041 };
Compat parse_compat(const std::string& text);  // "current" | "0.4.1"
const char* to_string(Compat compat);

}  // namespace moe::eval
