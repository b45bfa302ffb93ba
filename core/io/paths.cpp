#include "core/io/paths.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <system_error>

#include "core/base/error.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

// Without links where the file system tells; the words of `path` where it does not.
fs::path resolved(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::weakly_canonical(fs::absolute(path), error);
  whole = error ? fs::absolute(path).lexically_normal() : whole;
  return whole.has_filename() ? whole : whole.parent_path();  // "a/b/" is a/b
}

bool is_below(const fs::path& whole, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), whole.begin(), whole.end()).first ==
         folder.end();
}

// A path of /proc/self/mountinfo, where a space is \040.
fs::path unescaped(const std::string& field) {
  std::string path;
  for (size_t at = 0; at < field.size(); ++at) {
    int byte = 0;
    if (field[at] == '\\' && std::from_chars(field.data() + at + 1,
                                             field.data() + std::min(at + 4, field.size()), byte, 8)
                                     .ec == std::errc()) {
      path += static_cast<char>(byte);
      at += 3;
    } else {
      path += field[at];
    }
  }
  return path;
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
  const fs::path working_folder = fs::current_path(error);  // none when it was removed
  if ((!error && lies_in(working_folder, folder)) ||
      (home != nullptr && *home != '\0' && lies_in(home, folder))) {
    throw UserError(
        "{}: holds the working or the home folder and will not be replaced; give another output "
        "folder",
        folder.string());
  }
}

void check_not_mounted(const fs::path& folder) {
  const fs::path whole = resolved(folder);
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line, field; std::getline(mounts, line);) {
    std::istringstream fields(line);
    for (int index = 0; index < 5; ++index) {  // id, parent, device, root, where it is mounted
      fields >> field;
    }
    const fs::path mount = unescaped(field);
    if (is_below(mount, whole)) {
      throw UserError(
          "{}: is a mount point or holds one ({}) and cannot be replaced; give a folder below it, "
          "or another output folder",
          folder.string(), mount.string());
    }
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
