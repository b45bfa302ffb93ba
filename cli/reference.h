#pragma once
// cli/REFERENCE.md: every command and flag as Markdown, from the commands themselves.

#include <string>

namespace CLI {
class App;
}

namespace moe::cli {

std::string reference(const CLI::App& app);

}  // namespace moe::cli
