#include "core/eval/report/output_files.h"

#include <unistd.h>

#include "core/base/error.h"
#include "core/io/file.h"

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

void write_whole(const fs::path& file, const std::string& text) {
  const fs::path partial = file.string() + ".partial";
  try {
    io::write_file(partial, text);
    fs::rename(partial, file);
  } catch (...) {
    std::error_code ignored;
    fs::remove(partial, ignored);
    throw;
  }
}

void check_output(const std::vector<fs::path>& files, bool force, const std::string& flag) {
  for (const auto& file : files) {
    if (fs::exists(file) && !force) {
      throw UserError("{}: is there already; give another {}, or --force to replace it",
                      file.string(), flag);
    }
    const fs::path folder = file.parent_path();
    if (fs::exists(folder) && !fs::is_directory(folder)) {
      throw UserError("{} {}: a file, a folder is needed", flag, folder.string());
    }
    if (!is_writable(folder)) {
      throw UserError("{} {}: you may not write there; give another folder", flag, folder.string());
    }
  }
}

}  // namespace moe::eval
