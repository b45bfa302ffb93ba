#pragma once
// XXH3 hashes: 128-bit hashes of contents, as keys of caches, and 64-bit checksums of the files of
// a folder, which detect damage before the files are used. XXH3 runs at the speed of memory. It
// detects accidents, not forgeries.

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
  std::string hex() const;  // 32 hexadecimal digits
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
  // Adds the length and the bytes of a file. Calls `on_block`, which may throw, after every block.
  // Throws UserError if the file is missing, not a regular file or not readable, or if its length
  // changes meanwhile.
  void update_file(const std::filesystem::path& file, const std::function<void()>& on_block);
  Digest digest() const;  // of all bytes added so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest compute_digest(std::span<const std::byte> bytes);

// Returns the 64-bit hash of `bytes` as 16 hexadecimal digits.
std::string checksum_text(std::string_view bytes);

// Writes FOLDER/checksums.json with the checksum of every other regular file of the folder whose
// name does not begin with a dot: {"xxh3": {"model.safetensors": "0123456789abcdef", ...}, "list":
// checksum of "xxh3"}.
void write_checksums(const std::filesystem::path& folder);

// Returns a description of the first damage: a file that is missing, was changed or was added after
// the checksums were written, or a changed list. Returns nothing if there is none. Accepts
// checksums.json of older versions, which lacks the checksum of the list.
std::optional<std::string> find_damage(const std::filesystem::path& folder);

}  // namespace moe::io
