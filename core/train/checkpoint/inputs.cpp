#include "core/train/checkpoint/inputs.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/data/example_set.h"
#include "core/io/checksums.h"

namespace moe::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSampleBytes = 4096, kStride = size_t{4} << 20;

InputFile input_file(const fs::path& path, std::string role, bool is_sampled) {
  struct stat status {};
  ::stat(path.c_str(), &status);
  const int64_t modified_ns =
      int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
  return {std::move(role), static_cast<uint64_t>(status.st_size), modified_ns, "", path,
          is_sampled};
}

// Returns whether a file of a model folder is sampled; nothing for a file that a run does not read.
std::optional<bool> model_file_sampling(const fs::path& file) {
  const std::string name = file.filename().string();
  const bool is_weights = file.extension() == ".safetensors";
  const bool is_read = is_weights || name == "config.json" || name.starts_with("tokenizer") ||
                       name == "special_tokens_map.json";
  return is_read ? std::optional(is_weights) : std::nullopt;
}

// Returns the files of `folder` for which is_sampled() returns a value, named relative to it.
template <typename Iterator>
std::vector<InputFile> files_in(const fs::path& folder,
                                std::optional<bool> (*is_sampled)(const fs::path&)) {
  std::vector<InputFile> files;
  std::error_code ignored;
  for (const auto& entry : Iterator(folder, ignored)) {
    const auto sampled = is_sampled(entry.path());
    if (sampled && entry.is_regular_file(ignored)) {
      files.push_back(
          input_file(entry.path(), entry.path().lexically_relative(folder).string(), *sampled));
    }
  }
  std::ranges::sort(files, {}, &InputFile::role);  // the order of a folder is not deterministic
  return files;
}

// Returns the files of --data. Names like wiki.txt.gz and wiki.txt.1 have the role "text", as in
// the records of earlier versions.
std::vector<InputFile> data_files(const std::vector<fs::path>& words) {
  std::vector<InputFile> files;
  for (const auto& source : data::parse_sources(words)) {
    const fs::path& file = source.file;
    const bool is_text = file.extension() == ".txt" || file.stem().extension() == ".txt";
    std::string role = is_text ? "text" : "data";
    role += source.weight > 0 ? fmt::format(" of weight {}", source.weight) : "";
    files.push_back(input_file(file, role, false));
  }
  return files;
}

std::vector<InputFile> task_files(const std::vector<std::string>& tasks) {
  std::vector<InputFile> files;
  std::error_code ignored;
  for (const auto& task : tasks) {
    files.push_back(fs::is_regular_file(task, ignored)
                        ? input_file(task, fs::path(task).filename().string(), false)
                        : InputFile{task});
  }
  return files;
}

void add_samples(io::ContentHash& hash, const InputFile& file) {
  const Descriptor in = open_to_read(file.path);
  std::vector<std::byte> block(kSampleBytes);
  for (uint64_t offset = 0; offset < file.bytes; offset += kStride) {
    const ssize_t count = ::pread(in.get(), block.data(), block.size(), static_cast<off_t>(offset));
    if (count < 0) {
      fail_file(file.path.string(), "cannot be read");
    }
    hash.update(std::span(block).first(count));
  }
}

void compute_digest(InputFile& file) {
  if (!file.digest.empty() || file.path.empty()) {
    return;
  }
  io::ContentHash hash;
  if (file.is_sampled) {
    hash.update_text(fmt::format("{}", file.bytes));
    add_samples(hash, file);
  } else {
    hash.update_file(file.path, [] {});
  }
  file.digest = hash.digest().hex();
}

bool has_same_content(const InputFile& before, InputFile& now) {
  if (before.bytes != now.bytes) {
    return false;
  }
  if (before.modified_ns == now.modified_ns) {
    now.digest = before.digest;
    return true;
  }
  compute_digest(now);
  return before.digest == now.digest;
}

}  // namespace

std::vector<fs::path> input_paths(const TrainSettings& settings) {
  std::vector<fs::path> paths = settings.evaluation.data;
  paths.insert(paths.end(), {settings.model, settings.evaluation.tasks_folder});
  for (const auto& source : data::parse_sources(settings.data)) {
    paths.push_back(source.file);
  }
  std::ranges::copy_if(settings.evaluation.tasks, std::back_inserter(paths),
                       [](const std::string& task) { return fs::exists(task); });
  return paths;
}

Inputs find_inputs(const TrainSettings& settings) {
  const EvaluationSettings& evaluation = settings.evaluation;
  return {{"model", files_in<fs::directory_iterator>(settings.model, model_file_sampling)},
          {"data", data_files(settings.data)},
          {"eval-data", data_files(evaluation.data)},
          {"eval-tasks", task_files(evaluation.tasks)},
          {"eval-data-dir",
           files_in<fs::recursive_directory_iterator>(
               evaluation.tasks_folder, [](const fs::path&) { return std::optional(true); })}};
}

std::optional<Inputs> read_inputs(const fs::path& file) {
  constexpr uint64_t kMaxBytes = uint64_t{256} << 20;
  const auto json =
      fs::exists(file) ? try_parse_json(read_small_file(file, kMaxBytes)) : std::nullopt;
  if (!json || !json->is_object()) {
    return std::nullopt;
  }
  Inputs inputs;
  try {
    for (const auto& [key, files] : json->items()) {
      auto& list = inputs[key];
      for (const auto& entry : files) {
        list.push_back({entry.at("as").get<std::string>(), entry.at("bytes").get<uint64_t>(),
                        entry.at("modified").get<int64_t>(), entry.at("xxh3").get<std::string>()});
      }
    }
  } catch (const Json::exception&) {
    return std::nullopt;
  }
  return inputs;
}

std::string to_json(Inputs& inputs) {
  OrderedJson json;
  for (auto& [key, files] : inputs) {
    json[key] = OrderedJson::array();
    for (auto& file : files) {
      compute_digest(file);
      json[key].push_back({{"as", file.role},
                           {"bytes", file.bytes},
                           {"modified", file.modified_ns},
                           {"xxh3", file.digest}});
    }
  }
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

std::optional<std::string> find_difference(const std::vector<InputFile>& before,
                                           std::vector<InputFile>& now) {
  if (before.size() != now.size()) {
    return fmt::format("there were {} files, there are {}", before.size(), now.size());
  }
  for (size_t index = 0; index < now.size(); ++index) {
    InputFile& file = now[index];
    const std::string name = file.path.empty() ? file.role : file.path.string();
    if (before[index].role != file.role) {
      return fmt::format("{} is read as {}, before it was {}", name, file.role, before[index].role);
    }
    if (!has_same_content(before[index], file)) {
      return fmt::format("{} is not what the run began with", name);
    }
  }
  return std::nullopt;
}

}  // namespace moe::train
