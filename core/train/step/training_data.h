#pragma once
// Data of a run: reads the files of --data with the tokenizer of the model folder.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/data/examples.h"
#include "core/data/token_cache.h"
#include "core/io/checkpoint.h"
#include "core/train/config/settings.h"
#include "core/upcycle/upcycle_request.h"

namespace moe::train {

// Requires resolved settings.
data::BatchSettings batch_settings(const TrainSettings& settings);

// Adds the tokens of --add-tokens, or those of the template if it is "auto". Throws UserError.
model::VocabularyExtension extend_vocabulary(const TrainSettings& settings);

// Throws UserError if --data is empty.
void check_data_named(const TrainSettings& settings);

// Returns the examples of settings.data (data::open_or_tokenize()). Sets `lines` to descriptions of
// the files and of their cached tokens. Throws UserError if a file is invalid.
data::Examples read_data(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                         int64_t vocab_size,
                         const std::function<void(int64_t, int64_t)>& on_progress,
                         std::vector<std::string>& lines, data::HostTokens* shared = nullptr);

// Returns the tokenizer of the folder, or null if there is none: data of token rows needs none.
std::shared_ptr<const io::Tokenizer> find_tokenizer(const std::filesystem::path& folder,
                                                    int64_t vocab_size,
                                                    const io::EditedFiles& edited = {});

// Returns the files, by name, that a model trained with a chat template has in addition:
// chat_template.jinja if it is not that of the parent, and generation_config.json with the token
// that ends a turn if the parent's has no such stop token. Returns none for other templates.
std::map<std::string, std::string> chat_files(const TrainSettings& settings,
                                              const io::Checkpoint& parent, int64_t vocab_size);

// Returns a line for each file: "a.jsonl: Alpaca records; 2000 examples", with its share if files
// are mixed.
std::vector<std::string> describe_data(const data::Examples& examples);

// Receives an example, "FILE line N", and the tokenizer (null if there is none).
using SampleSink =
    std::function<void(const data::Example&, const std::string& where, const io::Tokenizer*)>;

// Passes the examples of settings.data to `sink` in file order. Reads at most `max_per_file`
// records of a file (0: all), and only config.json, tokenizer and chat template of the model
// folder. Writes nothing. Returns a line about each file and one about the template. Throws the
// exceptions of read_data().
std::vector<std::string> stream_samples(const TrainSettings& settings, int64_t max_per_file,
                                        Pipes pipes, const SampleSink& sink);

}  // namespace moe::train
