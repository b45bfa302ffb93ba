#pragma once
// SHA-256 (FIPS 180-4), to identify the inputs of a result. About 300 MB/s: for configs and
// samples, not for checkpoints.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace moe {

class Sha256 {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view bytes);
  std::string hex();  // the digest of all updates; call once

 private:
  void block(const uint8_t* bytes);
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> pending_{};
  size_t pending_bytes_ = 0;
  uint64_t total_bytes_ = 0;
};

std::string sha256_hex(std::string_view text);

}  // namespace moe
