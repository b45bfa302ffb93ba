// Writing a folder's parts: tensors into shards of a given size, the index over them, the parent's
// tokenizer files.
#include <algorithm>
#include <array>
#include <string_view>

#include "core/base/error.h"
#include "core/io/checkpoint.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

// The first tensor of every shard, and tensors.size() at the end. Shards are filled in order, as
// transformers does it.
std::vector<size_t> plan_shards(const std::vector<TensorSource>& tensors, uint64_t shard_bytes) {
  std::vector<size_t> starts = {0};
  uint64_t filled = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto bytes = static_cast<uint64_t>(tensors[i].info.bytes());
    if (i > starts.back() && filled + bytes > shard_bytes) {
      starts.push_back(i);
      filled = 0;
    }
    filled += bytes;
  }
  starts.push_back(tensors.size());
  return starts;
}

// Returns the bytes of tensor data written. `before`: those of the shards before, for on_bytes.
uint64_t write_shard(const fs::path& path,
                     std::span<const TensorSource> tensors,
                     uint64_t before,
                     const std::function<void(uint64_t)>& on_bytes) {
  std::vector<TensorInfo> infos;
  for (const auto& tensor : tensors) {
    infos.push_back(tensor.info);
  }
  SafetensorsWriter writer(path, std::move(infos));
  for (const auto& tensor : tensors) {
    const uint64_t expected = writer.written_bytes() + static_cast<uint64_t>(tensor.info.bytes());
    tensor.write(writer);
    MOE_CHECK(writer.written_bytes() == expected,
              "{}: '{}' sent the wrong number of bytes",
              path.string(),
              tensor.info.name);
    if (on_bytes) {
      on_bytes(before + writer.written_bytes());
    }
  }
  writer.finish();
  return writer.written_bytes();
}

bool is_tokenizer_file(const std::string& name) {
  constexpr std::array<std::string_view, 3> kNames = {
      "special_tokens_map.json", "added_tokens.json", "generation_config.json"};
  return name.starts_with("tokenizer") || name.starts_with("chat_template") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace

uint64_t write_tensors(const fs::path& folder,
                       const std::vector<TensorSource>& tensors,
                       uint64_t shard_bytes,
                       const std::function<void(uint64_t)>& on_bytes) {
  MOE_CHECK(shard_bytes > 0);
  const std::vector<size_t> starts = plan_shards(tensors, shard_bytes);
  const size_t shards = starts.size() - 1;
  Json weight_map = Json::object();
  uint64_t total = 0;
  for (size_t shard = 0; shard < shards; ++shard) {
    const std::string name =
        shards == 1 ? "model.safetensors"
                    : fmt::format("model-{:05}-of-{:05}.safetensors", shard + 1, shards);
    const auto part = std::span(tensors).subspan(starts[shard], starts[shard + 1] - starts[shard]);
    for (const auto& tensor : part) {
      MOE_CHECK(!weight_map.contains(tensor.info.name), "{} is written twice", tensor.info.name);
      weight_map[tensor.info.name] = name;
    }
    total += write_shard(folder / name, part, total, on_bytes);
  }
  if (shards > 1) {
    const Json index = {{"metadata", {{"total_size", total}}},
                        {"weight_map", std::move(weight_map)}};
    write_file(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }
  return total;
}

void check_space(const fs::path& folder, uint64_t bytes) {
  fs::path place = fs::absolute(folder);
  std::error_code error;
  while (!fs::exists(place, error) && place.has_relative_path()) {
    place = place.parent_path();
  }
  const fs::space_info space = fs::space(place, error);
  if (!error && space.available < bytes) {
    throw UserError(
        "{}: disk full: {} are needed, {} are free; free some space or write to another disk",
        folder.string(),
        size_text(bytes),
        size_text(space.available));
  }
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) {
    return;
  }
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (is_tokenizer_file(name) &&
        entry.is_regular_file(error)) {  // follows the links of the hub's cache
      write_file(to / name, MappedFile(entry.path()).bytes());
    }
  }
  if (fs::exists(to / "tokenizer.model") && !fs::exists(to / "tokenizer_config.json")) {
    // Without it transformers picks tokenizer class and BOS by model_type: another for the child
    // than for its parent.
    const OrderedJson config = {
        {"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}, {"legacy", true}};
    write_file(to / "tokenizer_config.json", config.dump(2) + "\n");
  }
}

}  // namespace moe::io
