// settings.toml read back.

#include <fmt/ranges.h>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/train/run/options.h"

namespace moe::train {

namespace {

std::string text_of(const Json& value) {
  if (value.is_array()) {
    std::vector<std::string> texts;
    for (const auto& element : value) {
      texts.push_back(text_of(element));
    }
    return fmt::format("[{}]", fmt::join(texts, ", "));
  }
  if (value.is_string()) {
    return toml_string(value.get<std::string>());
  }
  if (value.is_number_integer()) {
    return fmt::format("{}", value.get<int64_t>());
  }
  if (value.is_number()) {
    return fmt::format("{}", value.get<double>());
  }
  return !value.is_boolean() ? "neither text, number, true/false nor a list of these"
         : value.get<bool>() ? "true"
                             : "false";
}

}  // namespace

std::map<std::string, std::string> read_settings(const std::string& toml,
                                                 const std::string& where) {
  const Json file = parse_toml(toml, where);
  const auto table = file.find("train");
  if (table == file.end() || !table->is_object()) {
    throw UserError("{}: has no table [train]", where);
  }
  std::map<std::string, std::string> values;
  for (const auto& [key, value] : table->items()) {
    values[key] = text_of(value);
  }
  return values;
}

}  // namespace moe::train
