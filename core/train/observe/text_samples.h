#pragma once
// What the model wrote after held-out prompts, as RUN/samples.jsonl has it and as the report shows
// it.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"

namespace moe::train {

// Greedy text after a held-out prompt, with the weights after `step` steps.
struct TextSample {
  int64_t step = 0;
  std::string prompt, text;
};

// A line of samples.jsonl: {"step", "prompt", "text"}.
std::string line_of(const TextSample& sample);
std::optional<TextSample> read_sample(const Json& line);  // nothing: it is no line of ours

// The samples of a file, one by one; it ends where a line is broken or cut short. A file that is
// not there has none.
void for_each_sample(const std::filesystem::path& file,
                     const std::function<void(const TextSample&)>& on_sample);

// The samples of a run of any length in bounded memory: of each prompt the first, the last and some
// at equal distances between them.
class SampleHistory {
 public:
  void add(const TextSample& sample);  // steps ascend

  struct Prompt {
    std::string prompt;
    int64_t count = 0, stride = 1;  // of all samples those whose number the stride divides stay
    std::vector<TextSample> kept;
    TextSample last;
  };
  const std::vector<Prompt>& prompts() const { return prompts_; }  // in the order they came

  OrderedJson to_json() const;
  // UserError, opened by `where`: it is not what to_json() makes.
  static SampleHistory from_json(const Json& json, const std::string& where);

 private:
  std::vector<Prompt> prompts_;
};

// At most six of a prompt, the first and the last among them.
std::vector<const TextSample*> a_few(const SampleHistory::Prompt& prompt);

}  // namespace moe::train
