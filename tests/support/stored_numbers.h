#pragma once
// Stored tensors of a folder as bytes and as f32 values.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "core/io/checkpoint.h"
#include "core/model/config/folder_tensors.h"

namespace moe::test {

inline bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

inline std::vector<float> floats(const io::Checkpoint& checkpoint, const std::string& name) {
  std::vector<float> values(static_cast<size_t>(checkpoint.info(name).elements()));
  model::convert(checkpoint.bytes(name), checkpoint.info(name).dtype,
                 std::as_writable_bytes(std::span(values)), io::DType::kF32);
  return values;
}

}  // namespace moe::test
