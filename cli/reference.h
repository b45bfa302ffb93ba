#pragma once
// What the program says of itself, made from the declarations that it reads its flags by:
// cli/REFERENCE.md, the manual page, and the words that a shell completes.

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace moe::cli {

std::string reference(const CLI::App& app);    // Markdown
std::string manual_page(const CLI::App& app);  // of section 1, for man: groff's man macros

std::vector<const CLI::App*> subcommands_of(const CLI::App& app);
std::vector<std::string> subcommand_names(const CLI::App& app);

// The flags of a command under the headings of its help, in their order; without --help.
struct FlagGroup {
  std::string name;
  std::vector<const CLI::Option*> flags;
};
std::vector<FlagGroup> flag_groups(const CLI::App& command);

}  // namespace moe::cli
