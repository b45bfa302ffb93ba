#include "core/io/output_checks.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <system_error>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/io/file.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

// Returns `path` absolute, with links resolved if the file system can, without a trailing slash.
fs::path resolve(const fs::path& path) {
  std::error_code error;
  fs::path absolute = fs::weakly_canonical(fs::absolute(path), error);
  absolute = error ? fs::absolute(path).lexically_normal() : absolute;
  return absolute.has_filename() ? absolute : absolute.parent_path();
}

bool is_below(const fs::path& path, const fs::path& folder) {
  return std::mismatch(folder.begin(), folder.end(), path.begin(), path.end()).first ==
         folder.end();
}

// Decodes a path of /proc/self/mountinfo, where a space is \040.
fs::path unescape_mount(std::string path) {
  for (const char c : {' ', '\t', '\n', '\\'}) {
    path = replace_all(path, fmt::format("\\{:03o}", static_cast<int>(c)), std::string(1, c));
  }
  return path;
}

constexpr std::string_view kListHead = "moe output 1\n";
constexpr size_t kMaxListBytes = size_t{1} << 20;

// Name -> size in bytes. Folders and files of unknown size have none.
using OutputList = std::map<std::string, std::optional<uint64_t>>;

// Returns nothing if `folder` has no valid list.
std::optional<OutputList> read_output_list(const fs::path& folder) {
  const std::string text = read_file_start(folder / kOutputList, kMaxListBytes + 1);
  if (text.size() > kMaxListBytes || !text.starts_with(kListHead)) {
    return std::nullopt;
  }
  OutputList list;
  std::istringstream lines(text.substr(kListHead.size()));
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space == std::string::npos) {
      continue;
    }
    uint64_t bytes = 0;
    const auto [stop, error] = std::from_chars(line.data(), line.data() + space, bytes);
    const bool has_size = error == std::errc() && stop == line.data() + space;
    list[line.substr(space + 1)] = has_size ? std::optional(bytes) : std::nullopt;
  }
  return list;
}

std::string output_list_text(const OutputList& list) {
  std::string text(kListHead);
  for (const auto& [name, bytes] : list) {
    MOE_CHECK(name.find('\n') == std::string::npos, "'{}' has a line break", printable(name));
    text += fmt::format("{} {}\n", bytes ? std::to_string(*bytes) : "-", name);
  }
  return text;
}

// Returns the first entry below `folder` that is not in `list`, by its name relative to `folder`.
// Follows no links.
std::optional<std::string> find_foreign_entry(const fs::path& folder, const OutputList& list,
                                              bool compares_sizes) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    const auto listed = list.find(name);
    const fs::file_status status = entry.symlink_status();
    const bool is_ours = listed != list.end() &&
                         (fs::is_directory(status) ||
                          (fs::is_regular_file(status) && (!compares_sizes || !listed->second ||
                                                           *listed->second == entry.file_size())));
    if (!is_ours && name != kOutputList) {
      return name;
    }
  }
  return std::nullopt;
}

}  // namespace

bool is_within(const fs::path& inner, const fs::path& outer) {
  return is_below(resolve(inner), resolve(outer));
}

void check_removable(const fs::path& folder) {
  if (!is_taken(folder)) {
    return;
  }
  const char* home = std::getenv("HOME");
  std::error_code error;
  const fs::path working_folder = fs::current_path(error);  // none when it was removed
  USER_ERROR_IF((!error && is_within(working_folder, folder)) ||
                    (home != nullptr && *home != '\0' && is_within(home, folder)),
                "{}: holds the working or the home folder and will not be replaced; give another "
                "output folder",
                folder.string());
}

void check_not_mounted(const fs::path& folder) {
  const fs::path absolute = resolve(folder);
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line, field; std::getline(mounts, line);) {
    std::istringstream fields(line);
    for (int index = 0; index < 5; ++index) {  // id, parent, device, root, where it is mounted
      fields >> field;
    }
    const fs::path mount = unescape_mount(field);
    USER_ERROR_IF(is_below(mount, absolute),
                  "{}: is a mount point or holds one ({}) and cannot be replaced; give a folder "
                  "below it, or another output folder",
                  folder.string(), mount.string());
  }
}

void check_inputs_outside(const fs::path& folder, const std::vector<fs::path>& inputs) {
  if (!is_taken(folder)) {
    return;
  }
  for (const auto& input : inputs) {
    if (input.empty() || !is_within(input, folder)) {
      continue;
    }
    USER_ERROR_IF(is_within(folder, input),
                  "{}: is read by this command and would be replaced; give another output",
                  folder.string());
    throw UserError("{}: {} lies inside it and would be removed; give another output folder",
                    folder.string(), input.string());
  }
}

void write_output_list(const fs::path& folder) {
  OutputList list;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    list[entry.path().lexically_relative(folder).string()] =
        entry.is_regular_file() ? std::optional(entry.file_size()) : std::nullopt;
  }
  list.erase(kOutputList);
  write_file(folder / kOutputList, output_list_text(list));
}

void add_to_output_list(const fs::path& folder, const std::vector<std::string>& names) {
  OutputList list = read_output_list(folder).value_or(OutputList());
  for (const auto& name : names) {
    list[name] = std::nullopt;
  }
  write_whole(folder / kOutputList, output_list_text(list));
}

std::optional<std::string> find_unlisted(const fs::path& folder) {
  const auto list = read_output_list(folder);
  return list ? find_foreign_entry(folder, *list, /*compares_sizes=*/false) : std::nullopt;
}

void check_is_own_page(const fs::path& file) {
  if (!is_taken(file)) {
    return;
  }
  // Pages of older versions have only the second.
  constexpr std::string_view kGenerators[] = {
      "<meta name=\"generator\" content=\"moe\">",
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action "
      "'none'\">"};
  const std::string head = read_file_start(file, 512);
  const bool is_own = std::any_of(std::begin(kGenerators), std::end(kGenerators),
                                  [&](auto mark) { return head.find(mark) != std::string::npos; });
  USER_ERROR_IF(
      !is_own,
      "{}: is not a page that moe wrote and will not be replaced; move it, or give another output",
      file.string());
}

void check_written_by_moe(const fs::path& folder) {
  const auto list = read_output_list(folder);
  const auto foreign =
      find_foreign_entry(folder, list.value_or(OutputList()), /*compares_sizes=*/true);
  if (!foreign) {
    return;
  }
  const std::string file = (folder / printable(*foreign)).string();
  USER_ERROR_IF(!list,
                "{}: is not known to be written by moe (no {} there) and will not be replaced; "
                "move or remove {} yourself, or give another output folder",
                file, kOutputList, folder.string());
  throw UserError(
      "{}: is not in the list of what moe wrote there ({}), or was changed since, and will not be "
      "replaced; move it, or give another output folder",
      file, (folder / kOutputList).string());
}

void check_output(const std::vector<fs::path>& files, bool force, const std::string& flag,
                  const std::vector<fs::path>& inputs) {
  for (const auto& file : files) {
    USER_ERROR_IF(fs::is_symlink(file), "{}: is a link to {}; give that file itself, or another {}",
                  file.string(), fs::read_symlink(file).string(), flag);
    USER_ERROR_IF(fs::exists(file) && !force,
                  "{}: exists already; give another {}, or --force to replace it", file.string(),
                  flag);
    check_inputs_outside(file, inputs);
    const fs::path folder = file.parent_path();
    USER_ERROR_IF(fs::exists(folder) && !fs::is_directory(folder),
                  "{} {}: is a file; a folder is needed", flag, folder.string());
    USER_ERROR_IF(::access(nearest_existing(folder.empty() ? "." : folder).c_str(), W_OK) != 0,
                  "{} {}: is not writable; give another folder", flag, folder.string());
  }
}

void check_own_output(const std::vector<fs::path>& files) {
  for (const auto& file : files) {
    if (!fs::exists(file)) {
      continue;
    }
    const fs::path folder = file.parent_path();
    const auto list = read_output_list(folder);
    USER_ERROR_IF(!list || !list->contains(file.filename().string()) ||
                      !fs::is_regular_file(fs::symlink_status(file)),
                  "{}: is not in the list of what moe wrote there ({}) and will not be replaced; "
                  "move it, or give another -o",
                  file.string(), (folder / kOutputList).string());
  }
}

}  // namespace moe::io
