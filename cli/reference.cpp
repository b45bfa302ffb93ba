#include "cli/reference.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "core/base/version.h"

namespace moe::cli {

namespace {

// A cell of a table: no line breaks, no bars.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '|' ? "\\|" : std::string(1, c == '\n' ? ' ' : c);
  }
  return out;
}

// "-o, --out".
std::string names_of(const CLI::Option& option) {
  std::string names = option.get_name(/*positional=*/true, /*all_options=*/true);
  for (size_t comma = names.find(','); comma != std::string::npos;
       comma = names.find(',', comma + 2)) {
    names.replace(comma, 1, ", ");
  }
  return names;
}

std::string row_of(const CLI::Option& option) {
  return fmt::format("| `{}` | {} | {} |\n", names_of(option), cell(option.get_type_name()),
                     cell(option.get_description()));
}

std::string page_of(const std::string& name, const CLI::App& command) {
  std::string page = fmt::format("\n## {}\n\n{}.\n", name, command.get_description());
  for (const auto& [group, flags] : flag_groups(command)) {
    page += fmt::format("\n| {} | value | |\n|---|---|---|\n", group);
    for (const auto* flag : flags) {
      page += row_of(*flag);
    }
  }
  for (const auto* below : subcommands_of(command)) {
    page += page_of(name + " " + below->get_name(), *below);
  }
  return page;
}

// Text for groff: its marks stand for themselves, and no line is one of its requests.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : c == '"' ? "\\(dq" : std::string(1, c);
  }
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string manual_of(const std::string& name, const CLI::App& command) {
  std::string page = fmt::format(".SS {}\n{}.\n", roff(name), roff(command.get_description()));
  for (const auto& [group, flags] : flag_groups(command)) {
    page += fmt::format(".PP\n.I {}\n", roff(group));
    for (const auto* flag : flags) {
      page += fmt::format(".TP\n.BR \"{}\" \" {}\"\n{}\n", roff(names_of(*flag)),
                          roff(flag->get_type_name()), roff(flag->get_description()));
    }
  }
  for (const auto* below : subcommands_of(command)) {
    page += manual_of(name + " " + below->get_name(), *below);
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

std::string manual_page(const CLI::App& app) {
  std::string page = fmt::format(
      ".TH MOE 1 \"\" \"moe {0}\"\n.SH NAME\nmoe \\- {1}\n.SH SYNOPSIS\n.B moe\n.I COMMAND\n"
      "[arguments] [flags] [\\-\\-config RECIPE.toml]\n.SH COMMANDS\n",
      kVersion, roff(app.get_description().substr(app.get_description().find(": ") + 2)));
  for (const auto* command : subcommands_of(app)) {
    page += manual_of("moe " + command->get_name(), *command);
  }
  return page +
         ".SH EXIT STATUS\n.TP\n0\ndone\n.TP\n1\nthe machine failed; what was saved can be gone on "
         "with\n.TP\n2\nthe message says what to change\n.TP\n130\ninterrupted, after saving\n";
}

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

std::vector<std::string> subcommand_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const auto* command : subcommands_of(app)) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<FlagGroup> flag_groups(const CLI::App& command) {
  std::vector<FlagGroup> groups;
  for (const auto& name : command.get_groups()) {
    FlagGroup group{name, {}};
    for (const auto* flag : command.get_options()) {
      if (flag->get_group() == name && !flag->check_name("--help")) {
        group.flags.push_back(flag);
      }
    }
    if (!group.flags.empty()) {
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

}  // namespace moe::cli
