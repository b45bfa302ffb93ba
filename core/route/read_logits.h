#pragma once
// Plain logits, as people have them: a JSON list of rows, or CSV with one token a line. Torch-free.

#include <filesystem>
#include <string>

#include "core/base/json.h"

namespace moe::route {

// The text of a file, or of standard input for "-". UserError when it cannot be read or is larger
// than 1 GiB.
std::string read_input_text(const std::string& file);

// What a file of `moe route` holds, as JSON: a case (an object with "kind"), or an object with
// "logits" [T][E] and perhaps num_ranks, home and valid, made from a bare list or CSV too. CSV:
// numbers between commas, blanks or tabs; a first line of names is skipped; empty lines and lines
// that open with # too. UserError names file and line.
Json read_route_input(const std::string& text, const std::string& where);

}  // namespace moe::route
