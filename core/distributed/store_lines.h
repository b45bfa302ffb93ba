#pragma once
// Lines of JSON in the store. What others wrote there is hostile until it was read here
// (threat_model.md): of the right type, in its range, of few bytes, and fit for a terminal.
// UserError where it is not.

#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"

namespace moe::distributed {

constexpr const char* kStoreOfRun = "the store of the run";

int64_t number_of(const Json& line, const std::string& key, int64_t least, int64_t most);
std::string nonce_of(const Json& line, const std::string& key);
// At most 4 KiB of it; its lines stay lines.
std::string text_of(const Json& line, const std::string& key);

// What `parse` makes of each line, one JSON object each, appended whole. Lines that it refuses with
// UserError are of no rank of this run, and are left out.
template <typename Parse>
auto parse_lines(const std::optional<std::string>& text, const Parse& parse) {
  std::vector<decltype(parse(Json()))> parsed;
  std::istringstream stream(text.value_or(""));
  for (std::string line; std::getline(stream, line);) {
    try {
      parsed.push_back(parse(parse_json(line, kStoreOfRun)));
    } catch (const UserError&) {
    }
  }
  return parsed;
}

// One line, whatever bytes its texts hold.
std::string line_of(const Json& json);

}  // namespace moe::distributed
