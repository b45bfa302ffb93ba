#pragma once
// The words of --data: files, or files with weights (`a.jsonl:0.7 b.jsonl:0.3`).
//
// Without weights the files are joined: an epoch is every example once. With weights they are mixed
// (core/data/mixture.h): weights are shares of the examples that an epoch draws; they need not sum
// to one, only their ratios count. A path that exists wins over the reading as a weight.

#include <filesystem>
#include <string>
#include <vector>

namespace moe::data {

struct Source {
  std::filesystem::path file;
  double weight = 0;  // 0 = none given
};

// UserError: weights for some files only, a weight that is no positive number.
std::vector<Source> parse_sources(const std::vector<std::filesystem::path>& words);

}  // namespace moe::data
