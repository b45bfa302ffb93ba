#pragma once
// XXH3 hashes: of content, at 128 bits, to name a cache by what it was made from; and of a folder's
// files, at 64 bits, to detect damage before they are used. XXH3 runs at the speed of memory and
// detects accidents; it is no signature.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moe::io {

struct Digest {
  uint64_t high = 0, low = 0;
  bool operator==(const Digest&) const = default;
  std::string hex() const;  // 32 digits
};

class ContentHash {
 public:
  ContentHash();
  ~ContentHash();
  ContentHash(const ContentHash&) = delete;
  ContentHash& operator=(const ContentHash&) = delete;

  void update(std::span<const std::byte> bytes);
  // Adds the length, then the text, so that ("ab", "c") and ("a", "bc") differ.
  void update_text(std::string_view text);
  // Adds the length and the bytes of a file, a block at a time. `on_block` is called between blocks
  // and may throw. Throws UserError if the file is missing, not a regular file or not readable, or
  // if its length changes meanwhile.
  void update_file(const std::filesystem::path& file, const std::function<void()>& on_block);
  Digest digest() const;  // of everything added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest compute_digest(std::span<const std::byte> bytes);

// Returns the 64-bit hash of `bytes` as 16 hexadecimal digits.
std::string checksum_text(std::string_view bytes);

// Writes FOLDER/checksums.json with the checksum of every other regular file of the folder whose
// name does not begin with a dot: {"xxh3": {"model.safetensors": "0123456789abcdef", ...}, "list":
// checksum of "xxh3" itself}.
void write_checksums(const std::filesystem::path& folder);

// Returns a description of the first damage: a file that is missing, has other content than when
// the checksums were written, or was added later; a list that was changed. Returns nothing if there
// is none. A list of an older version, without a checksum of itself, is trusted.
std::optional<std::string> find_damage(const std::filesystem::path& folder);

}  // namespace moe::io
