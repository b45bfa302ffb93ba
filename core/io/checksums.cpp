#include "core/io/checksums.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <vector>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/io/file.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr const char* kChecksumsFile = "checksums.json";

template <typename Each>
void for_each_block(FileReader& in, Each each) {
  std::vector<char> block(size_t{1} << 20);
  while (const auto count = in.sgetn(block.data(), static_cast<std::streamsize>(block.size()))) {
    each(std::span<const char>(block).first(static_cast<size_t>(count)));
  }
}

// Returns the checksum of a file. Reads instead of mapping, so that truncation by another process
// is an error, not a signal. Throws UserError if the file cannot be read.
std::string file_checksum(const fs::path& file) {
  FileReader in(file);
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for_each_block(in, [&](std::span<const char> block) {
    XXH3_64bits_update(&state, block.data(), block.size());
  });
  return fmt::format("{:016x}", XXH3_64bits_digest(&state));
}

// Returns true if the list has a checksum of the file `name`. Files whose names begin with a dot
// (.nfs0012, .DS_Store) belong to the system.
bool is_hashed(const std::string& name) { return name != kChecksumsFile && !name.starts_with('.'); }

std::optional<std::string> find_damaged_file(const fs::path& folder, const Json& sums) {
  for (const auto& [name, expected] : sums.items()) {
    if (name.empty() || name.find('/') != std::string::npos) {
      return fmt::format("{} names '{}', which is no file of the folder", kChecksumsFile,
                         printable(name));
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
    if (expected != file_checksum(file)) {
      return name + " is not as it was written";
    }
  }
  return std::nullopt;
}

std::optional<std::string> find_added_file(const fs::path& folder, const Json& sums) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_hashed(name) && !sums.contains(name)) {
      return fmt::format("'{}' was added later ({} does not list it)", printable(name),
                         kChecksumsFile);
    }
  }
  return std::nullopt;
}

Digest as_digest(const XXH128_hash_t& hash) { return {hash.high64, hash.low64}; }

}  // namespace

struct ContentHash::State {
  XXH3_state_t xxh3;
};

std::string Digest::hex() const { return fmt::format("{:016x}{:016x}", high, low); }

ContentHash::ContentHash() : state_(std::make_unique<State>()) {
  XXH3_128bits_reset(&state_->xxh3);
}
ContentHash::~ContentHash() = default;

void ContentHash::update(std::span<const std::byte> bytes) {
  XXH3_128bits_update(&state_->xxh3, bytes.data(), bytes.size());
}

void ContentHash::update_text(std::string_view text) {
  const uint64_t length = text.size();
  update(std::as_bytes(std::span(&length, 1)));
  update(std::as_bytes(std::span(text)));
}

void ContentHash::update_file(const fs::path& file, const std::function<void()>& on_block) {
  FileReader in(file);
  const uint64_t length = fs::file_size(file);
  update(std::as_bytes(std::span(&length, 1)));
  uint64_t bytes = 0;
  for_each_block(in, [&](std::span<const char> block) {
    bytes += block.size();
    update(std::as_bytes(block));
    on_block();
  });
  USER_ERROR_IF(bytes != length,
                "{}: changed while it was read; start again when nothing writes to it",
                file.string());
}

Digest ContentHash::digest() const { return as_digest(XXH3_128bits_digest(&state_->xxh3)); }

Digest compute_digest(std::span<const std::byte> bytes) {
  return as_digest(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string checksum_text(std::string_view bytes) {
  return fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
}

void write_checksums(const fs::path& folder) {
  Json sums = Json::object();
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_regular_file() && is_hashed(name)) {
      sums[name] = file_checksum(entry.path());
    }
  }
  const OrderedJson json = {{"xxh3", sums}, {"list", checksum_text(sums.dump())}};
  write_file(folder / kChecksumsFile, json.dump(2) + "\n");
}

std::optional<std::string> find_damage(const fs::path& folder) {
  try {
    const Json json = read_json(folder / kChecksumsFile, uint64_t{1} << 24);
    const Json sums = json.is_object() ? json.value("xxh3", Json()) : Json();
    if (!sums.is_object()) {
      return fmt::format("{} is not a list of checksums", kChecksumsFile);
    }
    if (json.contains("list") && json["list"] != checksum_text(sums.dump())) {
      return fmt::format("{} is not as it was written", kChecksumsFile);
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
