// Writing a folder's parts: tensors into shards of a given size, the index over them, the parent's
// tokenizer files.
#include <algorithm>
#include <array>
#include <string_view>

#include "core/base/error.h"
#include "core/io/checkpoint.h"
#include "core/io/shards.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

// Returns the bytes of tensor data written. `before`: those of the shards before, for on_bytes.
uint64_t write_shard(const fs::path& path, const std::vector<TensorInfo>& infos,
                     std::span<const TensorSource> tensors, uint64_t before,
                     const std::function<void(uint64_t)>& on_bytes) {
  SafetensorsWriter writer(path, infos);
  for (const auto& tensor : tensors) {
    const uint64_t expected = writer.written_bytes() + static_cast<uint64_t>(tensor.info.bytes());
    tensor.write(writer);
    MOE_CHECK(writer.written_bytes() == expected, "{}: '{}' sent the wrong number of bytes",
              path.string(), tensor.info.name);
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

uint64_t write_tensors(const fs::path& folder, const std::vector<TensorSource>& tensors,
                       uint64_t shard_bytes, const std::function<void(uint64_t)>& on_bytes) {
  std::vector<TensorInfo> infos;
  for (const auto& tensor : tensors) {
    infos.push_back(tensor.info);
  }
  const std::vector<Shard> shards = plan_shards(infos, shard_bytes);
  std::span<const TensorSource> rest = tensors;
  uint64_t total = 0;
  for (const auto& shard : shards) {
    const auto part = rest.first(shard.tensors.size());
    rest = rest.subspan(part.size());
    total += write_shard(folder / shard.file, shard.tensors, part, total, on_bytes);
  }
  write_index(folder, shards);
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
        folder.string(), size_text(bytes), size_text(space.available));
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
