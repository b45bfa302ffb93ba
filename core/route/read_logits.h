#pragma once
// Plain logits, as people have them: a JSON list of rows, or CSV with one token a line. Torch-free.

#include <filesystem>
#include <string>

#include "core/base/json.h"

namespace moe::route {

// The text of a file, or of standard input for "-". UserError when it cannot be read or is larger
// than 1 GiB.
std::string read_input_text(const std::string& file);

// Returns an object with "logits" [T][E], and "num_ranks", "home" and "valid" where `text` has
// them. `text` is such an object, a JSON list of rows, or CSV: numbers separated by commas, blanks
// or tabs; a first line of names, empty lines and lines that begin with # are skipped. Throws
// UserError that names `where` and the line.
Json read_route_input(const std::string& text, const std::string& where);

}  // namespace moe::route
