#include "core/io/checksums.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/utf8.h"
#include "core/io/file.h"

namespace moe::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "checksums.json";
constexpr size_t kBlockBytes = size_t{1} << 20;

// Reads, does not map: a file that another process truncates meanwhile is an error here, not a
// signal. Throws UserError if it cannot be read.
std::string checksum(const fs::path& file) {
  FileReader in(file);
  std::vector<char> block(kBlockBytes);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  while (const auto count = in.sgetn(block.data(), static_cast<std::streamsize>(block.size()))) {
    XXH3_64bits_update(&state, block.data(), static_cast<size_t>(count));
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

// Names that begin with a dot come from the system (.nfs0012, .DS_Store), not from a run.
bool is_hidden(const std::string& name) { return name.starts_with('.'); }

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && name != kName && !is_hidden(name)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

// Of the list itself, by names in ascending order and without white space, so that how the file is
// laid out does not matter.
std::string sum_of_list(const Json& sums) {
  const std::string text = sums.dump();
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

std::optional<std::string> find_damaged_file(const fs::path& folder, const Json& sums) {
  for (const auto& [name, want] : sums.items()) {
    if (name.empty() || name.find('/') != std::string::npos) {
      return fmt::format("{} names '{}', which is no file of the folder", kName, printable(name));
    }
    const fs::path file = folder / name;
    std::error_code error;
    const auto type = fs::status(file, error).type();
    if (type == fs::file_type::not_found) {
      return name + " is missing";
    }
    if (type == fs::file_type::none) {
      return fmt::format("{} cannot be read: {}", name, error.message());
    }
    if (!want.is_string() || checksum(file) != want.get<std::string>()) {
      return name + " is not as it was written";
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_added_file(const fs::path& folder, const Json& sums) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name != kName && !is_hidden(name) && !sums.contains(name)) {
      return fmt::format("'{}' was added later ({} does not list it)", printable(name), kName);
    }
  }
  return std::nullopt;
}

}  // namespace

void write_checksums(const fs::path& folder) {
  Json sums = Json::object();
  for (const auto& file : files_of(folder)) {
    sums[file.filename().string()] = checksum(file);
  }
  const OrderedJson json = {{"xxh3", sums}, {"list", sum_of_list(sums)}};
  write_file(folder / kName, json.dump(2) + "\n");
}

std::optional<std::string> find_damage(const fs::path& folder) {
  try {
    const Json json = read_json(folder / kName, uint64_t{1} << 24);
    if (!json.is_object() || !json.contains("xxh3") || !json["xxh3"].is_object()) {
      return fmt::format("{} is not a list of checksums", kName);
    }
    const Json& sums = json["xxh3"];
    if (json.contains("list") && json["list"] != sum_of_list(sums)) {
      return fmt::format("{} is not as it was written", kName);
    }
    const auto damage = find_damaged_file(folder, sums);
    return damage ? damage : find_added_file(folder, sums);
  } catch (const UserError& error) {
    return error.what();
  } catch (const fs::filesystem_error& error) {
    return error.what();
  }
}

}  // namespace moe::io
