// Generators of the Markdown reference, the manual page, and the scripts of moe completion.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <sstream>

#include "cli/flags.h"
#include "core/base/text.h"
#include "core/base/version.h"

namespace moe::cli {
namespace {

using Flags = std::vector<const CLI::Option*>;
using Commands = std::vector<std::pair<std::string, const CLI::App*>>;

// Returns the commands of `app` with their full names, each followed by its subcommands ("bench",
// "bench train", ..). `prefix` ends in a space unless it is empty.
Commands named_commands(const CLI::App& app, const std::string& prefix = "") {
  Commands commands;
  for (const auto* child : subcommands(app)) {
    commands.emplace_back(prefix + child->get_name(), child);
    const Commands below = named_commands(*child, commands.back().first + " ");
    commands.insert(commands.end(), below.begin(), below.end());
  }
  return commands;
}

// Returns the app, under the name "", and its named_commands().
Commands all_commands(const CLI::App& app) {
  Commands commands = named_commands(app);
  commands.emplace(commands.begin(), "", &app);
  return commands;
}

// Returns the flags of a command by group, in the order of --help, without --help itself.
std::vector<std::pair<std::string, Flags>> flag_groups(const CLI::App& command) {
  std::vector<std::pair<std::string, Flags>> groups;
  for (const auto& name : command.get_groups()) {
    Flags flags;
    for (const auto* flag : command.get_options()) {
      if (flag->get_group() == name && !flag->check_name("--help")) {
        flags.push_back(flag);
      }
    }
    if (!flags.empty()) {
      groups.emplace_back(name, std::move(flags));
    }
  }
  return groups;
}

Flags all_flags(const CLI::App& command) {
  Flags all;
  for (const auto& [group, flags] : flag_groups(command)) {
    all.insert(all.end(), flags.begin(), flags.end());
  }
  return all;
}

std::string cell(const std::string& text) { return escape(text, {{'|', "\\|"}, {'\n', " "}}); }

// Returns all names of a flag: "-o, --out".
std::string flag_names(const CLI::Option& option) {
  return replace_all(option.get_name(/*positional=*/true, /*all_options=*/true), ",", ", ");
}

// Escapes special characters of groff, and a '.' or '\'' at the start, which would be a request.
std::string roff(const std::string& text) {
  const std::string out = escape(text, {{'\\', "\\e"}, {'-', "\\-"}, {'"', "\\(dq"}, {'\n', " "}});
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

// Returns the allowed values of a flag whose type name is a list such as "{keep,bf16}".
std::vector<std::string> flag_values(const CLI::Option& flag) {
  const std::string type = flag.get_type_name();
  std::vector<std::string> words;
  if (type.starts_with('{') && type.ends_with('}')) {
    std::istringstream list(type.substr(1, type.size() - 2));
    for (std::string word; std::getline(list, word, ',');) {
      words.push_back(word);
    }
  }
  return words;
}

// Returns the branches of a shell `case "$command $word"` that appends a subcommand to $command.
std::string case_branches(const CLI::App& app) {
  std::string arms;
  for (const auto& [name, command] : named_commands(app)) {
    arms += fmt::format("      '{}') command='{}' ;;\n",
                        name.find(' ') == std::string::npos ? " " + name : name, name);
  }
  return arms;
}

std::string bash_script(const CLI::App& app) {
  std::string values, flags;
  for (const auto& [name, command] : all_commands(app)) {
    for (const auto* flag : all_flags(*command)) {
      const std::string words = fmt::format("{}", fmt::join(flag_values(*flag), " "));
      for (const auto& flag_name :
           words.empty() ? std::vector<std::string>() : flag->get_lnames()) {
        values += fmt::format("    '{} --{}') words='{}' ;;\n", name, flag_name, words);
      }
    }
    flags += fmt::format("    '{}') words='{}'; flags='{} --help' ;;\n", name,
                         fmt::join(subcommand_names(*command), " "),
                         fmt::join(long_flags(*command), " "));
  }
  return fmt::format(
      R"(# Completion of moe for bash: source <(moe completion bash)
_moe() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
  local command= words= flags= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$command $word" in
{}    esac
  done
  case "$command" in
{}  esac
  case "$command $previous" in
{}    *) if [[ $current == -* ]]; then words=$flags; fi ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _moe moe
)",
      case_branches(app), flags, values);
}

// Escapes text for a [description] of zsh's _arguments, in single quotes.
std::string zsh_text(const std::string& text) {
  return escape(text, {{'\'', "'\\''"}, {'[', "\\["}, {']', "\\]"}, {':', "\\:"}});
}

// Returns the arguments of zsh's _arguments for a flag; none for a positional argument.
std::string zsh_flag(const CLI::Option& flag) {
  const std::vector<std::string> words = flag_values(flag);
  const std::string value = flag.get_items_expected_max() == 0 ? ""
                            : words.empty()                    ? ":value:_files"
                                            : fmt::format(":value:({})", fmt::join(words, " "));
  std::string lines;
  for (const auto& name : flag.get_lnames()) {
    lines +=
        fmt::format(" \\\n        '*--{}[{}]{}'", name, zsh_text(flag.get_description()), value);
  }
  return lines;
}

std::string zsh_script(const CLI::App& app) {
  std::string arms;
  for (const auto& [name, command] : all_commands(app)) {
    arms += fmt::format("    '{}')\n", name);
    const auto children = subcommands(*command);
    if (!children.empty()) {
      arms += "      local -a commands=(";
      for (const auto* child : children) {
        arms +=
            fmt::format("\n        '{}:{}'", child->get_name(), zsh_text(child->get_description()));
      }
      arms += ")\n      _describe command commands\n";
    }
    if (!name.empty()) {
      arms += "      _arguments";
      for (const auto* flag : all_flags(*command)) {
        arms += zsh_flag(*flag);
      }
      arms += " \\\n        '*:file:_files'\n";
    }
    arms += "      ;;\n";
  }
  return fmt::format(
      R"(#compdef moe
# Completion of moe for zsh: source <(moe completion zsh)
_moe() {{
  local command= word
  for word in "${{words[2,CURRENT-1]}}"; do
    case "$command $word" in
{}    esac
  done
  case "$command" in
{}  esac
}}
compdef _moe moe
)",
      case_branches(app), arms);
}

}  // namespace

std::string reference(const CLI::App& app) {
  std::string page =
      "# Every command and flag\n\nGenerated by `moe --reference` from the declarations of the "
      "flags; a test compares the two.\n[README.md](README.md) is the guide.\n";
  for (const auto& [name, command] : named_commands(app)) {
    page += fmt::format("\n## moe {}\n\n{}.\n", name, command->get_description());
    for (const auto& [group, flags] : flag_groups(*command)) {
      page += fmt::format("\n| {} | value | |\n|---|---|---|\n", group);
      for (const auto* flag : flags) {
        page += fmt::format("| `{}` | {} | {} |\n", flag_names(*flag), cell(flag->get_type_name()),
                            cell(flag->get_description()));
      }
    }
  }
  return page;
}

std::string manual_page(const CLI::App& app) {
  std::string page = fmt::format(
      ".TH MOE 1 \"\" \"moe {0}\"\n.SH NAME\nmoe \\- {1}\n.SH SYNOPSIS\n.B moe\n.I COMMAND\n"
      "[arguments] [flags] [\\-\\-config RECIPE.toml]\n.SH COMMANDS\n",
      kVersion, roff(app.get_description().substr(app.get_description().find(": ") + 2)));
  for (const auto& [name, command] : named_commands(app)) {
    page += fmt::format(".SS moe {}\n{}.\n", roff(name), roff(command->get_description()));
    for (const auto& [group, flags] : flag_groups(*command)) {
      page += fmt::format(".PP\n.I {}\n", roff(group));
      for (const auto* flag : flags) {
        page += fmt::format(".TP\n.BR \"{}\" \" {}\"\n{}\n", roff(flag_names(*flag)),
                            roff(flag->get_type_name()), roff(flag->get_description()));
      }
    }
  }
  return page +
         ".SH EXIT STATUS\n.TP\n0\nsuccess\n.TP\n1\nthe run failed; training can be resumed from "
         "its last checkpoint\n.TP\n2\ninvalid input or settings; the message says how to fix "
         "them\n.TP\n130\ninterrupted after saving\n";
}

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand("completion", "print a completion script for a shell");
  Option option =
      positional("SHELL", one_of("shell", *shell, {"bash", "zsh"}), group::kOutput, "bash or zsh");
  add_options(*command, {option});
  add_examples(*command, "source <(moe completion bash)");
  command->callback(
      [&app, shell] { print_text("{}", *shell == "bash" ? bash_script(app) : zsh_script(app)); });
}

}  // namespace moe::cli
