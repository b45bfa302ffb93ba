#include "core/eval/settings.h"

namespace moe::eval {

namespace fs = std::filesystem;

std::string dtype_name(model::Precision precision) {
  return precision == model::Precision::kF32    ? "float32"
         : precision == model::Precision::kBf16 ? "bfloat16"
                                                : "tf32";
}

std::vector<fs::path> input_files(const EvalSettings& settings) {
  std::vector<fs::path> files(settings.tasks.begin(), settings.tasks.end());
  for (const char* name : {"config.json", "tokenizer.model", "tokenizer.json",
                           "tokenizer_config.json", "special_tokens_map.json"}) {
    files.push_back(settings.model / name);
  }
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(settings.model, ignored)) {
    if (entry.path().filename().string().starts_with("model")) {  // shards and their index
      files.push_back(entry.path());
    }
  }
  for (const auto& entry : fs::directory_iterator(settings.against, ignored)) {
    files.push_back(entry.path());
  }
  return files;
}

}  // namespace moe::eval
