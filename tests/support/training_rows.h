#pragma once
// Token rows for commands that train.

#include <filesystem>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "tests/support/temp_dir.h"

namespace moe::test {

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
