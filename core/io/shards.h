#pragma once
// Which tensors of a folder go into which file: one file, or shards of a given size with an index
// over them. It follows from the list of tensors alone, whoever writes them.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/io/tensor_info.h"

namespace moe::io {

struct Shard {
  std::string file;  // "model.safetensors" alone, else "model-00001-of-0000N.safetensors"
  std::vector<TensorInfo> tensors;
};

// Filled in order, as transformers does it; a tensor larger than `shard_bytes` gets a shard of its
// own. No tensors: one file without any.
std::vector<Shard> plan_shards(const std::vector<TensorInfo>& tensors, uint64_t shard_bytes);

// model.safetensors.index.json over several shards; nothing for one.
void write_index(const std::filesystem::path& folder, const std::vector<Shard>& shards);

}  // namespace moe::io
