#pragma once
// RUN/inputs.json: what a run reads, by content. So a run may move to another folder or machine
// with its model and data, and goes on there, and one whose data were changed under it is refused.
//
//   {"model": [{"as": "config.json", "bytes": 612, "modified": 1767225600000000000, "xxh3": "..."},
//              ...], "data": [...], "eval-data": [...], "eval-tasks": [...], "eval-data-dir":
//              [...]}
//
// The keys are those of settings.toml. `as` says what a file is read as: in a folder its path below
// the folder, of a data file whether it is text, and its weight. A file of equal size and
// time of modification is taken to be the same and is not read. "xxh3" is over all bytes of a data
// file (128 bits, core/io/content_hash.h); of safetensors and benchmarks over 4 KiB of each 4 MiB,
// which tells models apart without reading their gigabytes.

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/train/config/settings.h"

namespace moe::train {

struct InputFile {
  std::string as;
  uint64_t bytes = 0;
  int64_t modified_ns = 0;          // since 1970
  std::string digest = {};          // hex; empty: not read yet
  std::filesystem::path path = {};  // where it lies now; empty in what an earlier run recorded
  bool is_sampled = false;
};

using Inputs = std::map<std::string, std::vector<InputFile>>;  // by key

// What `settings` name, without digests: nothing is read. A file that is not there counts as empty.
Inputs find_inputs(const TrainSettings& settings);

// The record of a run; none where there is no file or it is none that to_json() makes.
std::optional<Inputs> read_inputs(const std::filesystem::path& file);
// Digests that are missing are made, which reads the files.
std::string to_json(Inputs& inputs);

// How the files of one key differ from those `before`, a clause that names the first one; nothing
// where they are the same. Digests that were computed, or that stay valid, are put into `now`.
std::optional<std::string> find_difference(const std::vector<InputFile>& before,
                                           std::vector<InputFile>& now);

}  // namespace moe::train
