#pragma once
// RUN/inputs.json: hashes of the input files of a run. A run may be moved to another folder or
// machine with its model and data and resumed there; a run whose data has changed is refused.
//
//   {"model": [{"as": "config.json", "bytes": 612, "modified": 1767225600000000000, "xxh3": "..."},
//              ...], "data": [...], "eval-data", "eval-tasks", "eval-data-dir"}
//
// The keys are those of settings.toml. "as" is the role of a file: its path relative to an input
// folder, or "text"/"data" and the weight of a data file. "xxh3" (128 bits, core/io/checksums.h)
// covers a data file, and 4 KiB of every 4 MiB of safetensors and benchmarks. A file of equal size
// and modification time is not read again.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/train/config/settings.h"

namespace moe::train {

struct InputFile {
  std::string role;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;          // since 1970
  std::string digest = {};          // hex; "": not computed yet
  std::filesystem::path path = {};  // current path; "" in a record of an earlier run
  bool is_sampled = false;          // the digest covers 4 KiB of every 4 MiB
};

using Inputs = std::map<std::string, std::vector<InputFile>>;  // by key

// Returns the files and folders that a run reads.
std::vector<std::filesystem::path> input_paths(const TrainSettings& settings);

// Returns the inputs that `settings` name, without digests. A missing file has size 0.
Inputs find_inputs(const TrainSettings& settings);

// Returns the record of a run; nothing if the file is missing or invalid.
std::optional<Inputs> read_inputs(const std::filesystem::path& file);
// Computes missing digests, which reads the files, and returns the record.
std::string to_json(Inputs& inputs);

// Returns a clause on the first file of one key that differs from `before`; nothing if none does.
// Adds digests that were computed or are still valid to `now`.
std::optional<std::string> find_difference(const std::vector<InputFile>& before,
                                           std::vector<InputFile>& now);

}  // namespace moe::train
