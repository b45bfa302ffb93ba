#pragma once
// Unicode's punctuation, which the harness's filters drop from texts.

namespace moe::eval {

bool is_punctuation(char32_t c);  // categories Pc, Pd, Pe, Pf, Pi, Po, Ps of Unicode 14

}  // namespace moe::eval
