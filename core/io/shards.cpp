#include "core/io/shards.h"

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/io/file.h"
#include "core/io/safetensors_header.h"

namespace moe::io {

std::vector<Shard> plan_shards(const std::vector<TensorInfo>& tensors, uint64_t shard_bytes) {
  MOE_CHECK(shard_bytes > 0);
  std::vector<Shard> shards(1);
  uint64_t filled = 0;
  for (const auto& tensor : tensors) {
    const auto bytes = static_cast<uint64_t>(tensor.bytes());
    if (!shards.back().tensors.empty() && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().tensors.push_back(tensor);
    filled += bytes;
  }
  for (size_t number = 0; number < shards.size(); ++number) {
    shards[number].file = shards.size() == 1 ? "model.safetensors"
                                             : fmt::format("model-{:05}-of-{:05}.safetensors",
                                                           number + 1, shards.size());
  }
  return shards;
}

void write_index(const std::filesystem::path& folder, const std::vector<Shard>& shards) {
  Json weight_map = Json::object();
  uint64_t total = 0;
  for (const auto& shard : shards) {
    total += bytes_of(shard.tensors);
    for (const auto& tensor : shard.tensors) {
      MOE_CHECK(!weight_map.contains(tensor.name), "{} is written twice", tensor.name);
      weight_map[tensor.name] = shard.file;
    }
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", total}}},
                        {"weight_map", std::move(weight_map)}};
    write_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
}

}  // namespace moe::io
