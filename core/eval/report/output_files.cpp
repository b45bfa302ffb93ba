#include "core/eval/report/output_files.h"

#include <unistd.h>

#include "core/base/error.h"
#include "core/io/output_checks.h"

namespace moe::eval {

namespace fs = std::filesystem;

namespace {

// Whether `folder`, or the nearest parent that is there, lets us write: better known before hours
// of work than after.
bool is_writable(fs::path folder) {
  while (!folder.empty() && !fs::exists(folder)) {
    folder = folder.parent_path();
  }
  return ::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0;
}

}  // namespace

void check_output(const std::vector<fs::path>& files, bool force, const std::string& flag,
                  const std::vector<fs::path>& inputs) {
  for (const auto& file : files) {
    if (fs::is_symlink(file)) {
      throw UserError("{}: is a link to {}; give that file itself, or another {}", file.string(),
                      fs::read_symlink(file).string(), flag);
    }
    if (fs::exists(file) && !force) {
      throw UserError("{}: is there already; give another {}, or --force to replace it",
                      file.string(), flag);
    }
    io::check_inputs_outside(file, inputs);
    const fs::path folder = file.parent_path();
    if (fs::exists(folder) && !fs::is_directory(folder)) {
      throw UserError("{} {}: a file, a folder is needed", flag, folder.string());
    }
    if (!is_writable(folder)) {
      throw UserError("{} {}: you may not write there; give another folder", flag, folder.string());
    }
  }
}

void check_own_output(const std::vector<fs::path>& files) {
  for (const auto& file : files) {
    const fs::path folder = file.parent_path();
    if (fs::exists(file) && !io::is_listed_output(folder, file.filename().string())) {
      throw UserError(
          "{}: is not in the list of what moe wrote there ({}) and will not be replaced; move it, "
          "or give another -o",
          file.string(), (folder / io::kOutputList).string());
    }
  }
}

}  // namespace moe::eval
