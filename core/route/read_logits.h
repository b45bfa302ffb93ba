#pragma once
// Input of moe route: logits as JSON, or as CSV with one token per line.

#include <string>

#include "core/base/json.h"

namespace moe::route {

// Returns the text of a file, or of standard input for "-". Throws UserError if it cannot be read
// or is larger than 1 GiB.
std::string read_input_text(const std::string& file);

// Parses an object with "logits" [T][E], a JSON list of rows, or CSV, and returns the object. CSV
// numbers are separated by commas, blanks or tabs; a header, empty lines and lines that begin with
// # are skipped. Throws UserError with `where` and the line.
Json read_route_input(const std::string& text, const std::string& where);

}  // namespace moe::route
