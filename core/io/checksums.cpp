#include "core/io/checksums.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/io/file.h"

namespace moe::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "checksums.json";
constexpr size_t kBlockBytes = size_t{1} << 20;

// Read, not mapped: a file that another process cuts meanwhile is an error here, not a signal.
std::optional<std::string> checksum(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  std::vector<char> block(kBlockBytes);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  while (in) {
    in.read(block.data(), static_cast<std::streamsize>(block.size()));
    XXH3_64bits_update(&state, block.data(), static_cast<size_t>(in.gcount()));
  }
  if (!in.eof()) {
    return std::nullopt;
  }
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

std::vector<fs::path> files_of(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file() && entry.path().filename() != kName) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

void write_checksums(const fs::path& folder) {
  OrderedJson sums = OrderedJson::object();
  for (const auto& file : files_of(folder)) {
    const auto sum = checksum(file);
    if (!sum) {
      throw std::runtime_error(fmt::format("{}: cannot be read back", file.string()));
    }
    sums[file.filename().string()] = *sum;
  }
  const std::string text = OrderedJson{{"xxh3", sums}}.dump(2) + "\n";
  write_file(folder / kName, std::as_bytes(std::span(text)));
}

std::optional<std::string> find_damage(const fs::path& folder) {
  try {
    const Json json = read_json(folder / kName, uint64_t{1} << 24);
    if (!json.is_object() || !json.contains("xxh3") || !json["xxh3"].is_object()) {
      return fmt::format("{} is not a list of checksums", kName);
    }
    for (const auto& [name, want] : json["xxh3"].items()) {
      const fs::path file = folder / name;
      if (!fs::exists(file)) {
        return name + " is missing";
      }
      const auto sum = checksum(file);
      if (!sum || !want.is_string() || *sum != want.get<std::string>()) {
        return name + " is not as it was written";
      }
    }
  } catch (const UserError& error) {
    return error.what();
  } catch (const fs::filesystem_error& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace moe::io
