#pragma once
// What --layers says: even, odd, all, or a list such as 0,3,5 or 0-3,7. Layers count from 0; "every
// alternate layer" of the papers is even (core/model/README.md).

#include <cstdint>
#include <string>
#include <vector>

namespace moe::model {

// The layers of a model with `layers` of them, ascending, at least one. UserError that names what
// is wrong.
std::vector<int64_t> parse_layers(const std::string& text, int64_t layers);

}  // namespace moe::model
