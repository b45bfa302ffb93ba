#pragma once
// What a file or a run of bytes is, in 128 bits (XXH3): names a cache by its content and tells
// damage. It runs at the speed of memory; it is no signature.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
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
  // Length first, so that ("ab", "c") and ("a", "bc") differ.
  void update_text(std::string_view text);
  // The file's length and bytes, a block at a time; `on_block` is called between blocks and may
  // throw. UserError: missing, not a regular file, not readable, or its length changes meanwhile.
  void update_file(const std::filesystem::path& file, const std::function<void()>& on_block);
  Digest digest() const;  // of all so far

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Digest digest_of(std::span<const std::byte> bytes);

}  // namespace moe::io
