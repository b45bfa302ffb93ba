#pragma once

#include <filesystem>
#include <vector>

#include "core/eval/settings.h"

namespace moe::eval {

// Files that an evaluation reads and may not replace: of the model, of tasks that are files, of the
// run to compare with.
std::vector<std::filesystem::path> input_files(const EvalSettings& settings);

}  // namespace moe::eval
