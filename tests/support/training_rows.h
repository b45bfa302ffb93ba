#pragma once
// Token rows for commands that train, and the JSON lines that commands write.

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "tests/support/temp_dir.h"

namespace moe::test {

// Returns the object of each line of `text`.
inline std::vector<Json> json_lines(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(parse_json(line, "line " + std::to_string(lines.size() + 1)));
  }
  return lines;
}

// Writes `count` rows of six tokens below 64. Only the fourth token differs between rows; `last` is
// the sixth.
inline void write_training_rows(const std::filesystem::path& file, int count = 16, int last = 10) {
  std::string text;
  for (int row = 0; row < count; ++row) {
    const std::vector<int> ids = {5, 6, 7, 8 + row % 3, 9, last};
    text += OrderedJson{{"input_ids", ids}, {"labels", ids}}.dump() + "\n";
  }
  write_file(file, text);
}

}  // namespace moe::test
