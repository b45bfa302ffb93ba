// settings.toml read back.

#include <fmt/ranges.h>
#include <toml++/toml.h>

#include "core/base/error.h"
#include "core/base/toml_depth.h"
#include "core/train/run/options.h"

namespace moe::train {

namespace {

std::string text_of(const toml::node& node) {
  if (const auto* list = node.as_array()) {
    std::vector<std::string> texts;
    for (const auto& element : *list) {
      texts.push_back(text_of(element));
    }
    return fmt::format("[{}]", fmt::join(texts, ", "));
  }
  if (const auto* text = node.as_string()) {
    return toml_string(text->get());
  }
  if (const auto* whole = node.as_integer()) {
    return fmt::format("{}", whole->get());
  }
  if (const auto* number = node.as_floating_point()) {
    return fmt::format("{}", number->get());
  }
  const auto* flag = node.as_boolean();
  return flag == nullptr ? "neither text, number, true/false nor a list of these"
         : flag->get()   ? "true"
                         : "false";
}

}  // namespace

std::map<std::string, std::string> read_settings(const std::string& toml,
                                                 const std::string& where) {
  check_toml_depth(toml, where);
  std::map<std::string, std::string> values;
  try {
    const toml::table file = toml::parse(toml);
    const auto* table = file["train"].as_table();
    if (table == nullptr) {
      throw UserError("{}: has no table [train]", where);
    }
    for (const auto& [key, node] : *table) {
      values[std::string(key.str())] = text_of(node);
    }
  } catch (const toml::parse_error& error) {
    throw UserError("{}, line {}: {}", where, error.source().begin.line, error.description());
  }
  return values;
}

}  // namespace moe::train
