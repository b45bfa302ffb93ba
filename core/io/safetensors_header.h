#pragma once
// What stands before the tensors' bytes in a safetensors file (core/io/formats.md): its length and
// its JSON, of those who write whole files and of those who write parts.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/io/file.h"
#include "core/io/tensor_info.h"

namespace moe::io {

// The 8 bytes of the length and the header, padded so that data starts at a multiple of 8.
std::string safetensors_start(const std::vector<TensorInfo>& tensors);

uint64_t bytes_of(const std::vector<TensorInfo>& tensors);

// Claims the file's blocks at once: a disk too small shows before the first byte (UserError "disk
// full"), and the blocks lie side by side, which makes a copy a quarter faster. File systems that
// cannot are asked for nothing.
void reserve(const Descriptor& file, uint64_t bytes, const std::filesystem::path& path);

}  // namespace moe::io
