// Writing a folder's parts: tensors into shards of a given size, the index over them, the parent's
// tokenizer files.
#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/io/checkpoint.h"
#include "core/io/mapped_file.h"
#include "core/io/paths.h"
#include "core/io/shards.h"
#include "core/io/tokenizer/tokenizer.h"

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

// Files that a folder made from another takes over as they are.
constexpr std::array<const char*, 9> kCopiedFiles = {
    "tokenizer.model",     "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model.v3",  "added_tokens.json",  "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json", "generation_config.json"};

// Whether the Hugging Face cache lays out `target` for `folder`: .../snapshots/REVISION[/...] has
// links to .../blobs. Both without links.
bool is_blob_of(const fs::path& target, const fs::path& folder) {
  for (fs::path path = folder; path.has_relative_path(); path = path.parent_path()) {
    if (path.filename() == "snapshots" && target.parent_path() == path.parent_path() / "blobs") {
      return true;
    }
  }
  return false;
}

// The file itself where `file` is a link. A folder that others made may name any file of the user
// by a link, and a copy gives it away with the folder.
fs::path followed(const fs::path& file) {
  if (!fs::is_symlink(file)) {
    return file;
  }
  const fs::path target = fs::canonical(file), folder = fs::canonical(file.parent_path());
  if (!lies_in(target, folder) && !is_blob_of(target, folder)) {
    throw UserError(
        "{}: is a link to {}, outside of its folder, and will not be copied; put the file itself "
        "there, or remove the link",
        file.string(), target.string());
  }
  return target;
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
  fs::path path = fs::absolute(folder);
  std::error_code error;
  while (!fs::exists(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  const fs::space_info space = fs::space(path, error);
  if (!error && space.available < bytes) {
    throw UserError(
        "{}: disk full: {} are needed, {} are free; free some space or write to another disk",
        folder.string(), size_text(bytes), size_text(space.available));
  }
}

void copy_with_mode(const fs::path& from, const fs::path& to) {
  Descriptor source = open_to_read(from);
  struct stat status {};
  if (::fstat(source.get(), &status) != 0) {
    throw UserError("{}: cannot be read: {}", from.string(), std::strerror(errno));
  }
  const Descriptor copy(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                               status.st_mode & 0777));
  if (!copy.is_open()) {
    throw_write_error(errno, to);
  }
  write_all(copy, MappedFile(std::move(source), from).bytes(), to);
  sync(copy, to);
}

void check_tokenizer_files(const fs::path& folder) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  for (const char* name : kCopiedFiles) {
    std::error_code error;
    const fs::path file = folder / name;
    if (fs::is_regular_file(file, error) && fs::file_size(file, error) > kMaxBytes && !error) {
      throw UserError("{}: has more than the {} bytes that such a file may have", file.string(),
                      kMaxBytes);
    }
  }
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) {
    return;
  }
  for (const char* name : kCopiedFiles) {
    if (fs::is_regular_file(from / name, error)) {
      copy_with_mode(followed(from / name), to / name);
    }
  }
  if (tokenizer_kind(to) == TokenizerKind::kSentencepiece &&
      !fs::exists(to / "tokenizer_config.json")) {
    // Without it transformers picks tokenizer class and BOS by model_type: another for the child
    // than for its parent.
    const OrderedJson config = {
        {"tokenizer_class", "LlamaTokenizer"}, {"add_bos_token", true}, {"legacy", true}};
    write_file(to / "tokenizer_config.json", config.dump(2) + "\n");
  }
}

}  // namespace moe::io
