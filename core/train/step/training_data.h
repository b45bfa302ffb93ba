#pragma once
// The data of a run as its settings name them: files through the model's own tokenizer.

#include <functional>
#include <string>
#include <vector>

#include "core/data/examples.h"
#include "core/data/token_cache.h"
#include "core/io/checkpoint.h"
#include "core/train/config/settings.h"

namespace moe::train {

// UserError where --data names nothing.
void check_data_named(const TrainSettings& settings);

// Tokenised once: later runs find the tokens where settings.cache says. `lines` is told what each
// file was found to be and where the tokens are; `on_progress` is called often, with the examples
// and tokens made so far, and may throw. `shared`: of a run of several processes.
// UserError: what the readers of core/data say, a folder without tokenizer where text is met.
data::Examples read_data(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                         int64_t vocab_size,
                         const std::function<void(int64_t, int64_t)>& on_progress,
                         std::vector<std::string>& lines, data::HostTokens* shared = nullptr);

// "a.jsonl: Alpaca records, gzip; 2000 examples", one a file; a share where files are mixed.
std::vector<std::string> describe_data(const data::Examples& examples);

// A few examples and the names of their tokens, for --show-samples.
struct Samples {
  std::vector<data::Example> examples;        // the first `count`, the files taking turns
  std::vector<std::string> files, forms;      // what Example::file counts, and what they hold
  std::function<std::string(int64_t)> piece;  // the id itself where rows have no tokenizer
};

// Reads no more of each file than it shows, nothing of the weights, and writes nothing.
Samples read_samples(const TrainSettings& settings, int64_t count);

}  // namespace moe::train
