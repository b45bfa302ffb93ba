#include "core/io/output_list.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <iterator>
#include <map>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/io/file.h"
#include "core/io/partial_file.h"
#include "core/io/paths.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kListHead = "moe output 1\n";
constexpr uint64_t kMaxListBytes = uint64_t{1} << 20;

// Name -> size; no size for folders and where it is unknown.
using OutputList = std::map<std::string, std::optional<uint64_t>>;

// Returns nothing if `folder` has no list, or something else of that name.
std::optional<OutputList> read_output_list(const fs::path& folder) {
  // O_NONBLOCK: opening a named pipe must not wait for a writer.
  const Descriptor file(
      ::open((folder / kOutputList).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  if (!file.is_open() || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<uint64_t>(status.st_size) > kMaxListBytes) {
    return std::nullopt;
  }
  std::string text(static_cast<size_t>(status.st_size), '\0');
  if (::pread(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()) ||
      !text.starts_with(kListHead)) {
    return std::nullopt;
  }
  OutputList list;
  for (size_t begin = kListHead.size(); begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
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

// Calls `on_entry` with every entry below `folder` but the list and its name relative to `folder`,
// until it returns true. Follows no link.
void for_each_entry(
    const fs::path& folder,
    const std::function<bool(const fs::directory_entry&, const std::string& name)>& on_entry) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (name != kOutputList && on_entry(entry, name)) {
      return;
    }
  }
}

// The first entry below `folder` that moe is not known to have written.
std::optional<std::string> find_foreign_entry(const fs::path& folder, const OutputList& list,
                                              bool compares_sizes) {
  std::optional<std::string> found;
  for_each_entry(folder, [&](const fs::directory_entry& entry, const std::string& name) {
    const auto listed = list.find(name);
    const fs::file_status status = entry.symlink_status();
    const bool is_ours = listed != list.end() &&
                         (fs::is_directory(status) ||
                          (fs::is_regular_file(status) && (!compares_sizes || !listed->second ||
                                                           *listed->second == entry.file_size())));
    if (!is_ours) {
      found = name;
    }
    return !is_ours;
  });
  return found;
}

}  // namespace

void write_output_list(const fs::path& folder) {
  OutputList list;
  for_each_entry(folder, [&](const fs::directory_entry& entry, const std::string& name) {
    list[name] = entry.is_regular_file() ? std::optional(entry.file_size()) : std::nullopt;
    return false;
  });
  write_file(folder / kOutputList, output_list_text(list));
}

void add_to_output_list(const fs::path& folder, const std::vector<std::string>& names) {
  OutputList list = read_output_list(folder).value_or(OutputList());
  for (const auto& name : names) {
    list[name] = std::nullopt;
  }
  write_whole(folder / kOutputList, output_list_text(list));
}

bool is_listed_output(const fs::path& folder, const std::string& name) {
  const auto list = read_output_list(folder);
  const fs::file_status status = fs::symlink_status(folder / name);
  return list && list->count(name) > 0 && (!fs::exists(status) || fs::is_regular_file(status));
}

std::optional<std::string> find_unlisted(const fs::path& folder) {
  const auto list = read_output_list(folder);
  return list ? find_foreign_entry(folder, *list, /*compares_sizes=*/false) : std::nullopt;
}

void check_is_own_page(const fs::path& file) {
  if (!is_taken(file)) {
    return;
  }
  // The second is in the head of pages from before there was the first.
  constexpr std::string_view kGenerators[] = {
      "<meta name=\"generator\" content=\"moe\">",
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action "
      "'none'\">"};
  const Descriptor page(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat status {};
  std::string head(512, '\0');
  const bool is_file =
      page.is_open() && ::fstat(page.get(), &status) == 0 && S_ISREG(status.st_mode);
  const ssize_t count = is_file ? ::pread(page.get(), head.data(), head.size(), 0) : 0;
  head.resize(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  const bool is_own = std::any_of(std::begin(kGenerators), std::end(kGenerators),
                                  [&](auto mark) { return head.find(mark) != std::string::npos; });
  if (!is_own) {
    throw UserError(
        "{}: is not a page that moe wrote and will not be replaced; move it, or give another "
        "output",
        file.string());
  }
}

void check_written_by_moe(const fs::path& folder) {
  const auto list = read_output_list(folder);
  const auto foreign =
      find_foreign_entry(folder, list.value_or(OutputList()), /*compares_sizes=*/true);
  if (!foreign) {
    return;
  }
  const std::string file = (folder / printable(*foreign)).string();
  if (!list) {
    throw UserError(
        "{}: is not known to be written by moe (no {} there) and will not be replaced; move or "
        "remove {} yourself, or give another output folder",
        file, kOutputList, folder.string());
  }
  throw UserError(
      "{}: is not in the list of what moe wrote there ({}), or was changed since, and will not be "
      "replaced; move it, or give another output folder",
      file, (folder / kOutputList).string());
}

}  // namespace moe::io
