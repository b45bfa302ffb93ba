#pragma once
// A checkpoint folder: config.json, one model.safetensors or an index with shards, tokenizer files.
// Reading checks that index and shards agree; writing is all or nothing (formats.md).

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/safetensors.h"
#include "core/io/staged_folder.h"

namespace moe::io {

struct TensorSource;

class Checkpoint {
 public:
  // Maps every shard, reads headers only. Throws UserError: not a folder, no config.json, no
  // weights, an index that names a missing shard or disagrees with a shard, a tensor in two shards.
  // model.safetensors wins over an index.
  explicit Checkpoint(const std::filesystem::path& folder);

  // This folder as another model, of which no folder is written: `made` are written to memory, and
  // its tensor `name` is the one of them that `sources[name]` says, or that tensor of this folder,
  // mapped where it is. Tokenizer files are this folder's.
  Checkpoint as_model(Json config, const std::map<std::string, std::string>& sources,
                      const std::vector<TensorSource>& made) const;

  const std::filesystem::path& folder() const { return folder_; }
  const Json& config() const { return config_; }
  std::string config_name() const {
    return (folder_ / "config.json").string();
  }                                         // for error messages
  std::vector<TensorInfo> tensors() const;  // all shards, by name
  bool has(const std::string& name) const { return where_.count(name) > 0; }
  const TensorInfo& info(const std::string& name) const;          // UserError when missing
  const SafetensorsFile& file_of(const std::string& name) const;  // UserError when missing
  // The same file, mapped for as long as somebody holds it, whether this checkpoint lives or not.
  std::shared_ptr<const SafetensorsFile> shared_file_of(const std::string& name) const;
  std::span<const std::byte> bytes(const std::string& name) const;  // UserError when missing

 private:
  struct Place {
    size_t file = 0;
    TensorInfo info;
    std::string stored_name;  // in that file
  };
  Checkpoint() = default;
  void add_file(SafetensorsFile file);
  void open_shards(const std::filesystem::path& index_path);
  const Place& place_of(const std::string& name) const;

  std::filesystem::path folder_;
  Json config_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Place> where_;
};

// UserError when the disk of `folder` (or its nearest existing parent) has less than `bytes` free.
void check_space(const std::filesystem::path& folder, uint64_t bytes);

// A tensor to be written: its description and a function that sends its bytes to the writer.
struct TensorSource {
  TensorInfo info;
  std::function<void(SafetensorsWriter&)> write;
};

// Writes `tensors` in order into `folder`: model.safetensors when they fit into `shard_bytes`, else
// model-00001-of-0000N.safetensors and model.safetensors.index.json. A tensor larger than
// `shard_bytes` gets a shard of its own. `on_bytes` is told after each tensor how many bytes of
// tensor data are written so far. Returns their sum.
uint64_t write_tensors(const std::filesystem::path& folder,
                       const std::vector<TensorSource>& tensors, uint64_t shard_bytes,
                       const std::function<void(uint64_t)>& on_bytes = {});

// Makes `to` with the bytes and the mode of `from` (less the umask): what only its owner may read
// stays so. UserError: `from` cannot be read, the disk is full.
void copy_with_mode(const std::filesystem::path& from, const std::filesystem::path& to);

// Throws UserError if a tokenizer or generation file of `folder` has more than 1 GiB. Such files
// are copied and hashed whole, and a sparse file of any size takes no space on the disk it comes
// from.
void check_tokenizer_files(const std::filesystem::path& folder);

// Copies tokenizer and generation files of `from` by their exact names, with the modes they have;
// writes a LLaMA tokenizer_config.json where a tokenizer.model comes without one (formats.md).
// UserError: one is a link to a file that is neither in `from` nor in the Hugging Face cache that
// holds `from`.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace moe::io
