#pragma once
// A checkpoint folder: config.json, one model.safetensors or an index with shards, tokenizer files
// (core/io/formats.md).

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/io/safetensors.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::io {

class Checkpoint {
 public:
  // Maps every shard and reads only the headers. Throws UserError if `folder` is not a folder, has
  // no config.json or no weights, if the index names a missing shard or disagrees with a shard, or
  // if a tensor is in two shards. model.safetensors takes precedence over an index.
  explicit Checkpoint(const std::filesystem::path& folder);

  // Returns a checkpoint of another model without writing its folder. Its tensor `name` is tensor
  // `sources[name]`: one of `new_tensors`, which are written to memory, else one of this folder,
  // which stays mapped. The texts `edited` replace tokenizer files of this folder.
  Checkpoint as_model(Json config, const std::map<std::string, std::string>& sources,
                      const std::vector<TensorSource>& new_tensors, EditedFiles edited = {}) const;

  const std::filesystem::path& folder() const { return folder_; }
  const Json& config() const { return config_; }
  std::string config_name() const { return (folder_ / "config.json").string(); }  // for errors
  const EditedFiles& edited_files() const { return edited_; }  // replace files of the folder
  std::vector<TensorInfo> tensors() const;                     // of all shards, by name
  bool has(const std::string& name) const { return places_.count(name) > 0; }
  // Return the description and the mapped bytes of a tensor. Throw UserError if it is missing.
  const TensorInfo& info(const std::string& name) const { return find_place(name).info; }
  std::span<const std::byte> bytes(const std::string& name) const;
  // Returns the file that holds the tensor. Throws UserError if the tensor is missing. The file
  // stays mapped while a copy of the pointer lives.
  const std::shared_ptr<const SafetensorsFile>& tensor_file(const std::string& name) const;

 private:
  struct Place {
    size_t file = 0;
    TensorInfo info;
    std::string stored_name;  // name of the tensor in that file
  };
  Checkpoint() = default;
  void add_file(SafetensorsFile file);
  void open_shards(const std::filesystem::path& index_path);
  const Place& find_place(const std::string& name) const;

  std::filesystem::path folder_;
  Json config_;
  EditedFiles edited_;
  std::vector<std::shared_ptr<const SafetensorsFile>> files_;
  std::map<std::string, Place> places_;
};

// Throws UserError if the disk of `folder`, or of its nearest existing parent, has less than
// `bytes` free.
void check_space(const std::filesystem::path& folder, uint64_t bytes);

// Copies the file `from` to `to` with its mode (less the umask), so that a private file stays
// private. Throws UserError if `from` cannot be read or the disk is full.
void copy_with_mode(const std::filesystem::path& from, const std::filesystem::path& to);

// Writes texts over files of `folder`, by their names; they may be copies of read-only files.
void write_edited_files(const std::filesystem::path& folder, const EditedFiles& files);

// Copies tokenizer and generation files of `from` by their exact names, with their modes, and
// writes the texts `edited` over them. Writes llama_tokenizer_config() for a tokenizer.model
// without tokenizer_config.json (formats.md). Throws UserError if a file is a link to a target
// outside `from` and outside the Hugging Face cache that holds `from`.
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to,
                          const EditedFiles& edited = {});

}  // namespace moe::io
