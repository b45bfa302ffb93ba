#include "core/io/paths.h"

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "core/base/error.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

// Without links where the file system tells; the words of `path` where it does not.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path place = fs::weakly_canonical(fs::absolute(path), error);
  place = error ? fs::absolute(path).lexically_normal() : place;
  return place.has_filename() ? place : place.parent_path();  // "a/b/" is a/b
}

bool is_below(const fs::path& place, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), place.begin(), place.end()).first ==
         folder.end();
}

}  // namespace

fs::path parent_folder(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

bool is_taken(const fs::path& path) { return fs::exists(fs::symlink_status(path)); }

bool lies_in(const fs::path& inner, const fs::path& outer) {
  return is_below(resolved(inner), resolved(outer));
}

void check_removable(const fs::path& folder) {
  if (!is_taken(folder)) {
    return;
  }
  const char* home = std::getenv("HOME");
  std::error_code error;
  const fs::path here = fs::current_path(error);  // none when it was removed
  if ((!error && lies_in(here, folder)) ||
      (home != nullptr && *home != '\0' && lies_in(home, folder))) {
    throw UserError(
        "{}: holds the working or the home folder and will not be replaced; give another output "
        "folder",
        folder.string());
  }
}

void check_inputs_outside(const fs::path& folder, const std::vector<fs::path>& inputs) {
  if (!is_taken(folder)) {
    return;
  }
  for (const auto& input : inputs) {
    if (input.empty() || !lies_in(input, folder)) {
      continue;
    }
    if (lies_in(folder, input)) {
      throw UserError("{}: is read by this command and would be replaced; give another output",
                      folder.string());
    }
    throw UserError("{}: {} lies inside it and would be removed; give another output folder",
                    folder.string(), input.string());
  }
}

}  // namespace moe::io
