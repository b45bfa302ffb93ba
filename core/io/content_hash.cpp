#include "core/io/content_hash.h"

#define XXH_INLINE_ALL
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "core/base/read_file.h"

namespace moe::io {

namespace {

constexpr size_t kBlock_bytes = size_t{1} << 20;

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

void ContentHash::update_file(const std::filesystem::path& file,
                              const std::function<void()>& on_block) {
  const Descriptor in = open_to_read(file);
  struct stat status {};
  if (::fstat(in.get(), &status) != 0) {
    throw UserError("{}: cannot be read: {}", file.string(), std::strerror(errno));
  }
  const auto length = static_cast<uint64_t>(status.st_size);
  update(std::as_bytes(std::span(&length, 1)));
  std::vector<std::byte> block(kBlock_bytes);
  uint64_t seen = 0;
  for (;;) {
    const ssize_t count = ::read(in.get(), block.data(), block.size());
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count < 0) {
      throw UserError("{}: cannot be read: {}", file.string(), std::strerror(errno));
    }
    if (count == 0) {
      break;
    }
    seen += static_cast<uint64_t>(count);
    update(std::span(block).first(static_cast<size_t>(count)));
    on_block();
  }
  if (seen != length) {
    throw UserError("{}: changed while it was read; start again when nothing writes to it",
                    file.string());
  }
}

Digest ContentHash::digest() const { return as_digest(XXH3_128bits_digest(&state_->xxh3)); }

Digest digest_of(std::span<const std::byte> bytes) {
  return as_digest(XXH3_128bits(bytes.data(), bytes.size()));
}

}  // namespace moe::io
