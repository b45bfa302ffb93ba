// moe completion: a script that makes a shell complete commands, flags, and the words of flags that
// take one of a few.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <sstream>

#include "cli/commands.h"
#include "cli/flags.h"
#include "cli/reference.h"

namespace moe::cli {

namespace {

// The words that a flag takes where they are few: its type is "{keep,bf16}" (add_options).
std::vector<std::string> words_of(const CLI::Option& flag) {
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

// A command as a shell sees it: "upcycle", "bench train".
struct ShellCommand {
  std::string name;
  const CLI::App* app;
};

void collect(const CLI::App& app, const std::string& name, std::vector<ShellCommand>& commands) {
  commands.push_back({name, &app});
  for (const auto* below : subcommands_of(app)) {
    collect(*below, name.empty() ? below->get_name() : name + " " + below->get_name(), commands);
  }
}

std::vector<ShellCommand> commands_of(const CLI::App& app) {
  std::vector<ShellCommand> commands;
  collect(app, "", commands);
  return commands;
}

std::vector<const CLI::Option*> flags_of(const CLI::App& app) {
  std::vector<const CLI::Option*> flags;
  for (const auto& group : flag_groups(app)) {
    for (const auto* flag : group.flags) {
      if (!flag->get_lnames().empty()) {
        flags.push_back(flag);
      }
    }
  }
  return flags;
}

// The arms of a `case` over the command so far and the next word: '' and bench, bench and train.
std::string arms_of_names(const CLI::App& app) {
  std::string arms;
  for (const auto& [name, command] : commands_of(app)) {
    if (!name.empty()) {
      arms += fmt::format("      '{}') command='{}' ;;\n",
                          name.find(' ') == std::string::npos ? " " + name : name, name);
    }
  }
  return arms;
}

std::string bash_script(const CLI::App& app) {
  std::string values, flags;
  for (const auto& [name, command] : commands_of(app)) {
    const std::vector<std::string> below = subcommand_names(*command);
    for (const auto* flag : flags_of(*command)) {
      const std::vector<std::string> words = words_of(*flag);
      for (const auto& flag_name :
           words.empty() ? std::vector<std::string>() : flag->get_lnames()) {
        values +=
            fmt::format("    '{} --{}') words='{}' ;;\n", name, flag_name, fmt::join(words, " "));
      }
    }
    flags += fmt::format("    '{}') words='{}'; flags='{} --help' ;;\n", name,
                         fmt::join(below, " "), fmt::join(long_flags(*command), " "));
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
      arms_of_names(app), flags, values);
}

// Text inside a [description] of zsh's _arguments, within single quotes.
std::string described(const std::string& text) {
  std::string out;
  for (const char c : text) {
    out += c == '\''                          ? "'\\''"
           : c == '[' || c == ']' || c == ':' ? std::string("\\") + c
                                              : std::string(1, c);
  }
  return out;
}

std::string zsh_flag(const CLI::Option& flag) {
  const std::vector<std::string> words = words_of(flag);
  const std::string value = flag.get_items_expected_max() == 0 ? ""
                            : words.empty()                    ? ":value:_files"
                                            : fmt::format(":value:({})", fmt::join(words, " "));
  std::string lines;
  for (const auto& name : flag.get_lnames()) {
    lines +=
        fmt::format(" \\\n        '*--{}[{}]{}'", name, described(flag.get_description()), value);
  }
  return lines;
}

std::string zsh_script(const CLI::App& app) {
  std::string arms;
  for (const auto& [name, command] : commands_of(app)) {
    arms += fmt::format("    '{}')\n", name);
    const auto below = subcommands_of(*command);
    if (!below.empty()) {
      arms += "      local -a commands=(";
      for (const auto* command_below : below) {
        arms += fmt::format("\n        '{}:{}'", command_below->get_name(),
                            described(command_below->get_description()));
      }
      arms += ")\n      _describe command commands\n";
    }
    if (!name.empty()) {
      arms += "      _arguments";
      for (const auto* flag : flags_of(*command)) {
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
      arms_of_names(app), arms);
}

}  // namespace

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      app.add_subcommand("completion", "a script for a shell that completes commands and flags");
  add_options(*command, {{.name = "shell",
                          .member = one_of("shell", *shell, {"bash", "zsh"}),
                          .group = group::kOutput,
                          .help = "bash or zsh: source <(moe completion bash)",
                          .spelled = "SHELL",
                          .is_required = true}});
  command->callback(
      [&app, shell] { print_text("{}", *shell == "bash" ? bash_script(app) : zsh_script(app)); });
}

}  // namespace moe::cli
