#include "core/io/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <set>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"
#include "core/io/staged_folder.h"

namespace moe::io {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool path_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

void check_folder(const fs::path& folder) {
  const std::string name = folder.string();
  std::error_code error;
  const auto status = fs::status(folder, error);
  if (!fs::exists(status)) {
    const auto old = find_old_folder(folder);
    throw UserError("{}: no such folder{}", name,
                    !old ? ""
                         : fmt::format("; a run was killed while replacing it, the old one is {}: "
                                       "rename it",
                                       old->string()));
  }
  USER_ERROR_IF(!fs::is_directory(status),
                "{}: is a file; give the model folder that holds config.json", name);
  USER_ERROR_IF(!path_exists(folder / "config.json"),
                "{}: has no config.json; a model folder holds config.json and model.safetensors",
                name);
}

// Reads the map from tensor names to shard names of an index.
std::map<std::string, std::string> read_weight_map(const fs::path& index_path) {
  const std::string where = index_path.string();
  constexpr uint64_t kMaxIndexBytes = uint64_t{256} << 20;
  const Json index = read_json(index_path, kMaxIndexBytes);
  const Json list = index.is_object() ? index.value("weight_map", Json()) : Json();
  USER_ERROR_IF(!list.is_object(), "{}: has no 'weight_map' object; fetch it again", where);
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, unused] : list.items()) {
    const std::string shard = get_string(list, tensor, where);
    USER_ERROR_IF(shard.empty() || shard == "." || shard == ".." ||
                      shard.find('/') != std::string::npos || shard.find('\0') != std::string::npos,
                  "{}: '{}' is listed in '{}', which is not a file name in this folder", where,
                  printable(tensor), printable(shard));
    weight_map[tensor] = shard;
  }
  USER_ERROR_IF(weight_map.empty(), "{}: its 'weight_map' is empty; fetch it again", where);
  return weight_map;
}

// Writes `tensors` to a file in memory, which is freed with its mapping.
SafetensorsFile file_in_memory(const std::vector<TensorSource>& tensors, const fs::path& folder) {
  Descriptor file = make_memory_file();
  write_safetensors(fmt::format("/proc/self/fd/{}", file.get()), tensors);
  return {std::move(file), folder / "tensors in memory"};
}

// Files that are copied from the source folder unchanged.
constexpr std::array<const char*, 9> kCopiedFiles = {
    "tokenizer.model",     "tokenizer.json",     "tokenizer_config.json",
    "tokenizer.model.v3",  "added_tokens.json",  "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json", "generation_config.json"};

// Returns true if `target` is a blob of the Hugging Face cache that holds `folder`, where
// .../snapshots/REVISION[/...] has links to .../blobs. Both paths must be resolved.
bool is_hub_blob(const fs::path& target, const fs::path& folder) {
  for (fs::path path = folder; path.has_relative_path(); path = path.parent_path()) {
    if (path.filename() == "snapshots" && target.parent_path() == path.parent_path() / "blobs") {
      return true;
    }
  }
  return false;
}

// Returns the target of `file` if it is a link, else `file`. Throws UserError if the target is
// outside the folder: a link in a downloaded folder may name any private file of the user, and the
// copy would publish it.
fs::path resolve_link(const fs::path& file) {
  if (!fs::is_symlink(file)) {
    return file;
  }
  const fs::path target = fs::canonical(file), folder = fs::canonical(file.parent_path());
  USER_ERROR_IF(!is_within(target, folder) && !is_hub_blob(target, folder),
                "{}: is a link to {}, outside of its folder, and will not be copied; put the file "
                "itself there, or remove the link",
                file.string(), target.string());
  return target;
}

// Throws UserError if a tokenizer or generation file of `folder` has more than 1 GiB. Such files
// are copied and hashed as a whole, and a sparse file of any size takes no space on its own disk.
void check_tokenizer_files(const fs::path& folder) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  for (const char* name : kCopiedFiles) {
    std::error_code error;
    const fs::path file = folder / name;
    if (fs::is_regular_file(file, error) && fs::file_size(file, error) > kMaxBytes && !error) {
      throw_too_large(file.string(), kMaxBytes);
    }
  }
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
  check_folder(folder_);
  config_ = read_json(folder_ / "config.json");
  USER_ERROR_IF(!config_.is_object(), "{}: must be a JSON object", config_name());
  if (path_exists(folder_ / kSingleFile)) {
    add_file(SafetensorsFile(folder_ / kSingleFile));
  } else if (path_exists(folder_ / kIndexFile)) {
    open_shards(folder_ / kIndexFile);
  } else {
    USER_ERROR_IF(path_exists(folder_ / "pytorch_model.bin") ||
                      path_exists(folder_ / "pytorch_model.bin.index.json"),
                  "{0}: has pytorch_model.bin only, a Python pickle; convert it with: python -c "
                  "\"from transformers import AutoModelForCausalLM as M; "
                  "M.from_pretrained('{0}').save_pretrained('{0}')\"",
                  folder_.string());
    throw UserError("{}: has neither {} nor {}; fetch the weights", folder_.string(), kSingleFile,
                    kIndexFile);
  }
  check_tokenizer_files(folder_);
}

void Checkpoint::add_file(SafetensorsFile file) {
  files_.push_back(std::make_shared<const SafetensorsFile>(std::move(file)));
  for (const auto& tensor : files_.back()->tensors()) {
    const auto [place, is_new] =
        places_.try_emplace(tensor.name, Place{files_.size() - 1, tensor, tensor.name});
    USER_ERROR_IF(!is_new, "{}: '{}' is in {} and in {}; fetch the folder again", folder_.string(),
                  printable(tensor.name), files_.at(place->second.file)->path().filename().string(),
                  files_.back()->path().filename().string());
  }
}

Checkpoint Checkpoint::as_model(Json config, const std::map<std::string, std::string>& sources,
                                const std::vector<TensorSource>& new_tensors,
                                EditedFiles edited) const {
  Checkpoint model;
  model.folder_ = folder_;
  model.config_ = std::move(config);
  model.edited_ = std::move(edited);
  model.add_file(file_in_memory(new_tensors, folder_));
  const auto in_memory = model.places_;
  model.files_.insert(model.files_.end(), files_.begin(), files_.end());
  for (const auto& [name, source] : sources) {
    const bool is_new = in_memory.contains(source);
    Place stored = is_new ? in_memory.at(source) : find_place(source);
    stored.file += is_new ? 0 : 1;  // file 0 is in memory
    stored.info.name = name;
    MOE_CHECK(model.places_.emplace(name, std::move(stored)).second, "duplicate tensor {}", name);
  }
  return model;
}

void Checkpoint::open_shards(const fs::path& index_path) {
  const std::string where = index_path.string();
  const auto weight_map = read_weight_map(index_path);
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map) {
    shards.insert(shard);
  }
  for (const auto& shard : shards) {
    USER_ERROR_IF(!path_exists(folder_ / shard),
                  "{}: names the shard '{}', which is not in the folder; fetch it", where,
                  printable(shard));
    add_file(SafetensorsFile(folder_ / shard));
  }
  for (const auto& [tensor, shard] : weight_map) {
    const auto place = places_.find(tensor);
    USER_ERROR_IF(
        place == places_.end() || files_.at(place->second.file)->path().filename() != shard,
        "{}: says that '{}' is in shard '{}', which does not hold it; fetch both again", where,
        printable(tensor), printable(shard));
  }
  for (const auto& [tensor, place] : places_) {
    USER_ERROR_IF(weight_map.count(tensor) == 0,
                  "{}: does not list '{}', which shard '{}' holds; fetch both again", where,
                  printable(tensor), files_.at(place.file)->path().filename().string());
  }
}

std::vector<TensorInfo> Checkpoint::tensors() const {
  std::vector<TensorInfo> all;
  for (const auto& [name, place] : places_) {
    all.push_back(place.info);
  }
  return all;
}

const Checkpoint::Place& Checkpoint::find_place(const std::string& name) const {
  const auto place = places_.find(name);
  USER_ERROR_IF(place == places_.end(), "{}: tensor '{}' is missing", folder_.string(),
                printable(name));
  return place->second;
}

std::span<const std::byte> Checkpoint::bytes(const std::string& name) const {
  const Place& stored = find_place(name);
  return files_.at(stored.file)->bytes(stored.stored_name);
}

const std::shared_ptr<const SafetensorsFile>& Checkpoint::tensor_file(
    const std::string& name) const {
  return files_.at(find_place(name).file);
}

void check_space(const fs::path& folder, uint64_t bytes) {
  std::error_code error;
  const fs::space_info space = fs::space(nearest_existing(folder), error);
  USER_ERROR_IF(
      !error && space.available < bytes,
      "{}: disk full: {} are needed, {} are free; free some space or write to another disk",
      folder.string(), size_text(bytes), size_text(space.available));
}

void copy_with_mode(const fs::path& from, const fs::path& to) {
  Descriptor source = open_to_read(from);
  struct stat status {};
  if (::fstat(source.get(), &status) != 0) {
    fail_file(from.string(), "cannot be read");
  }
  const Descriptor copy(::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC,
                               status.st_mode & 0777));
  if (!copy.is_open()) {
    throw_write_error(errno, to);
  }
  write_all(copy, MappedFile(std::move(source), from).bytes(), to);
  sync(copy, to);
}

void write_edited_files(const fs::path& folder, const EditedFiles& files) {
  std::error_code ignored;
  for (const auto& [name, text] : files) {
    fs::permissions(folder / name, fs::perms::owner_write, fs::perm_options::add, ignored);
    write_file(folder / name, text);
  }
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to, const EditedFiles& edited) {
  std::error_code error;
  if (fs::equivalent(from, to, error)) {
    return;
  }
  for (const char* name : kCopiedFiles) {
    if (fs::is_regular_file(from / name, error)) {
      copy_with_mode(resolve_link(from / name), to / name);
    }
  }
  write_edited_files(to, edited);
  write_edited_files(to, stock_tokenizer_files(to));  // with the tokens of the edited files
  if (has_sentencepiece_model(to) && !fs::exists(to / "tokenizer_config.json")) {
    write_file(to / "tokenizer_config.json", llama_tokenizer_config().dump(2) + "\n");
  }
}

}  // namespace moe::io
