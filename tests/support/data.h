#pragma once
// Models and texts of the repository that tests read, and the larger published ones, which are not
// part of it: MOE_SHARED_DATA, else ../shared/data next to the checkout.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/places.h"
#include "tests/support/temp_dir.h"

namespace moe::test {

// Returns an empty path if the shared data are absent.
inline fs::path shared_data() {
  const char* given = std::getenv("MOE_SHARED_DATA");
  const fs::path folder = given != nullptr ? given : source_folder() / ".." / "shared" / "data";
  return fs::is_directory(folder) ? fs::weakly_canonical(folder) : fs::path();
}

// Returns the folder of a small LLaMA of the repository. Its tokenizer.model has LLaMA's settings
// (BPE, byte fallback, a space before the text) and 1,024 pieces.
inline fs::path tiny_model_folder() { return source_folder() / "recipes/tiny/model"; }

// Returns the folder of small benchmarks: the authors' formats with texts of our own.
inline fs::path bench_folder() { return source_folder() / "tests/golden/bench"; }

// Returns small trained models, each with a file of results of transformers: that of the repository
// (tests/golden/make_reference.py) and, if present, the published one.
inline std::vector<std::pair<fs::path, fs::path>> reference_models() {
  std::vector<std::pair<fs::path, fs::path>> models = {
      {tiny_model_folder(), source_folder() / "tests/golden/reference.json"}};
  if (const auto stories = shared_data() / "stories260K-hf"; !shared_data().empty()) {
    models.push_back({stories, stories / "reference.json"});
  }
  return models;
}

// Returns tiny_model_folder(), and the folders of LLaMA's tokenizer and of stories260K's if
// present.
inline std::vector<fs::path> sentencepiece_folders() {
  std::vector<fs::path> folders = {tiny_model_folder()};
  if (const auto data = shared_data(); !data.empty()) {
    folders.insert(folders.end(), {data / "llama-tokenizer", data / "stories260K-hf"});
  }
  return folders;
}

// Returns pieces of about 1,000 bytes, cut at spaces, of English texts of the repository and, if
// present, of the shared data.
inline std::vector<std::string> english_texts() {
  std::vector<fs::path> files;
  for (const char* name : {"recipes/tiny/instruct.jsonl", "CHANGELOG.md", "cli/README.md"}) {
    files.push_back(source_folder() / name);
  }
  if (const auto data = shared_data(); !data.empty()) {
    files.insert(files.end(),
                 {data / "text/tinyshakespeare.txt", data / "text/tinystories_sample_cs336.txt",
                  data / "instruct/alpaca_2000.jsonl"});
  }
  std::vector<std::string> texts;
  for (const auto& file : files) {
    const std::string text = read_file(file).substr(0, 150'000);
    for (size_t at = 0, end = 0; at < text.size(); at = end) {
      end = std::min(text.size(), text.find(' ', at + 1000));
      texts.push_back(text.substr(at, end - at));
    }
  }
  return texts;
}

}  // namespace moe::test

#define MOE_NEED_SHARED_DATA()                                                     \
  if (::moe::test::shared_data().empty()) {                                        \
    MOE_SKIP("no shared data: set MOE_SHARED_DATA or put it into ../shared/data"); \
  }
