#pragma once
// Descriptions of all commands and flags, generated from their declarations: cli/REFERENCE.md and
// the manual page. reference.cpp also has moe completion, which uses the same declarations.

#include <string>

namespace CLI {
class App;
}

namespace moe::cli {

// Returns cli/REFERENCE.md (Markdown).
std::string reference(const CLI::App& app);
// Returns the manual page moe(1) in groff's man macros.
std::string manual_page(const CLI::App& app);

}  // namespace moe::cli
