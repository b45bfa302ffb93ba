#include "cli/reference.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>

namespace moe::cli {

namespace {

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// A cell of a table: no line breaks, no bars.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '|' ? "\\|" : std::string(1, c == '\n' ? ' ' : c);
  }
  return out;
}

std::string row_of(const CLI::Option& option) {
  std::string name = option.get_name(/*positional=*/true, /*all_options=*/true);
  for (size_t comma = name.find(','); comma != std::string::npos;
       comma = name.find(',', comma + 2)) {
    name.replace(comma, 1, ", ");
  }
  return fmt::format("| `{}` | {} | {} |\n", name, cell(option.get_type_name()),
                     cell(option.get_description()));
}

using RowsByGroup = std::vector<std::pair<std::string, std::vector<std::string>>>;

RowsByGroup rows_of(const CLI::App& command) {
  RowsByGroup groups;
  for (const auto& group : command.get_groups()) {
    std::vector<std::string> rows;
    for (const auto* option : command.get_options()) {
      if (option->get_group() == group && !option->check_name("--help")) {
        rows.push_back(row_of(*option));
      }
    }
    if (!rows.empty()) {
      groups.emplace_back(group, rows);
    }
  }
  return groups;
}

std::set<std::string> all_rows(const CLI::App& command) {
  std::set<std::string> all;
  for (const auto& [group, rows] : rows_of(command)) {
    all.insert(rows.begin(), rows.end());
  }
  return all;
}

// The first subcommand that has all of these flags. A command that runs one of its subcommands
// where none is named takes that one's flags itself, and they are listed once.
const CLI::App* subcommand_with(const CLI::App& command, const std::set<std::string>& rows) {
  for (const auto* below : subcommands_of(command)) {
    const std::set<std::string> all = all_rows(*below);
    if (!rows.empty() && std::includes(all.begin(), all.end(), rows.begin(), rows.end())) {
      return below;
    }
  }
  return nullptr;
}

std::string page_of(const std::string& name, const CLI::App& command) {
  std::string page = fmt::format("\n## {}\n\n{}.\n", name, command.get_description());
  if (const auto* same = subcommand_with(command, all_rows(command))) {
    page += fmt::format("\nWhere nothing else is named it takes the flags of `{} {}`.\n", name,
                        same->get_name());
  } else {
    for (const auto& [group, rows] : rows_of(command)) {
      page += fmt::format("\n| {} | value | |\n|---|---|---|\n{}", group, fmt::join(rows, ""));
    }
  }
  for (const auto* below : subcommands_of(command)) {
    page += page_of(name + " " + below->get_name(), *below);
  }
  return page;
}

}  // namespace

std::string reference(const CLI::App& app) {
  std::string page =
      "# Every command and flag\n\nWritten by `moe --reference`, from the declarations that the "
      "program reads its flags by; a test holds the two\ntogether. [README.md](README.md) is the "
      "guide.\n";
  for (const auto* command : subcommands_of(app)) {
    page += page_of("moe " + command->get_name(), *command);
  }
  return page;
}

}  // namespace moe::cli
