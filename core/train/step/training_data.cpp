#include "core/train/step/training_data.h"

#include <algorithm>
#include <numeric>
#include <thread>

#include "core/base/error.h"
#include "core/base/json.h"
#include "core/data/templates.h"
#include "core/model/config/config.h"
#include "core/tokenizer/tokenizer.h"
#include "core/upcycle/upcycle.h"

namespace moe::train {
namespace {

using SharedTokenizer = std::shared_ptr<const io::Tokenizer>;

data::ReadSettings reader_settings(const TrainSettings& settings) {
  const auto cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  return {settings.objective,
          settings.format,
          parse_template(settings),
          settings.loss_on,
          0,
          settings.threads > 0 ? settings.threads : cores};
}

SharedTokenizer load_tokenizer(const io::Checkpoint& checkpoint, int64_t vocab_size) {
  return std::make_shared<io::Tokenizer>(
      io::Tokenizer::load(checkpoint.folder(), vocab_size, checkpoint.edited_files()));
}

// Returns `count` examples: the first of each file, then the second of each file, and so on.
std::vector<data::Example> interleave_files(const data::Examples& examples, size_t count) {
  std::vector<data::Example> taken;
  for (int64_t index = 0; index < static_cast<int64_t>(count); ++index) {
    for (const auto& range : examples.ranges) {
      if (index < range.count && taken.size() < count) {
        taken.push_back(examples.at(range.begin + index));
      }
    }
  }
  return taken;
}

}  // namespace

std::shared_ptr<const io::Tokenizer> find_tokenizer(const io::Checkpoint& checkpoint,
                                                    int64_t vocab_size) {
  try {
    return load_tokenizer(checkpoint, vocab_size);
  } catch (const UserError&) {
    return nullptr;
  }
}

data::BatchSettings batch_settings(const TrainSettings& settings) {
  const auto seed = static_cast<uint64_t>(settings.seed);
  return {*settings.pack, settings.shuffle,  *settings.seq_len, *settings.micro_batch,
          seed,           settings.pack_mask};
}

model::VocabularyExtension extend_vocabulary(const TrainSettings& settings) {
  std::vector<std::string> tokens = io::split_tokens(settings.add_tokens);
  if (settings.add_tokens == "auto") {
    const auto form = parse_template(settings).chat();
    tokens = form ? form->marks() : std::vector<std::string>();
    USER_ERROR_IF(tokens.empty(),
                  "--add-tokens auto: --template {} names no tokens; list them, or use a template "
                  "such as chatml",
                  settings.text_template);
  }
  return model::extend_vocabulary(settings.model, tokens);
}

void check_data_named(const TrainSettings& settings) {
  USER_ERROR_IF(settings.data.empty(), "--data is missing: name at least one file");
}

data::Examples read_data(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                         int64_t vocab_size,
                         const std::function<void(int64_t, int64_t)>& on_progress,
                         std::vector<std::string>& lines, data::HostTokens* shared) {
  const auto codec = [&] { return data::make_text_codec(load_tokenizer(checkpoint, vocab_size)); };
  const data::TokenizerSource source = {
      io::tokenizer_file(checkpoint.folder()),
      io::special_token_words(checkpoint.folder()) + settings.add_tokens};
  std::vector<std::string> notes;
  data::Examples examples = data::open_or_tokenise(
      {data::parse_sources(settings.data), reader_settings(settings), vocab_size, source, codec,
       data::cache_location(settings.cache), shared, on_progress},
      notes);
  lines = describe_data(examples);
  if (settings.objective == data::Objective::kInstruct && !examples.all_rows) {
    lines.push_back("template: " + parse_template(settings).description());
  }
  lines.insert(lines.end(), notes.begin(), notes.end());
  return examples;
}

std::map<std::string, std::string> chat_files(const TrainSettings& settings,
                                              const io::Checkpoint& parent, int64_t vocab_size) {
  std::map<std::string, std::string> files;
  const data::Template form = parse_template(settings);
  if (!form.chat()) {
    return files;
  }
  if (settings.text_template != "auto") {
    files["chat_template.jinja"] = form.chat()->source();
  }
  const SharedTokenizer tokenizer = load_tokenizer(parent, vocab_size);
  const std::vector<int64_t> end =
      data::question_tokens(form, "a", data::make_text_codec(tokenizer)).end;
  std::vector<int64_t> stops = tokenizer->stop_ids();
  if (end.size() == 1 && std::ranges::find(stops, end[0]) == stops.end()) {
    const auto file = parent.folder() / "generation_config.json";
    OrderedJson config =
        std::filesystem::exists(file) ? OrderedJson(read_json(file)) : OrderedJson::object();
    stops.push_back(end[0]);
    config["eos_token_id"] = stops;
    files["generation_config.json"] = config.dump(2) + "\n";
  }
  return files;
}

std::vector<std::string> describe_data(const data::Examples& examples) {
  const double total = std::accumulate(examples.weights.begin(), examples.weights.end(), 0.0);
  std::vector<std::string> lines;
  for (size_t file = 0; file < examples.files.size(); ++file) {
    lines.push_back(fmt::format("{}: {}; {} examples", examples.files[file],
                                examples.forms.at(file), examples.ranges.at(file).count));
    if (total > 0) {
      lines.back() +=
          fmt::format(", {:.4g} % of those drawn", 100 * examples.weights[file] / total);
    }
  }
  return lines;
}

Samples read_samples(const TrainSettings& given, int64_t count) {
  TrainSettings settings = given;
  check_numbers(settings);
  check_data_named(settings);
  auto vocabulary = extend_vocabulary(settings);
  vocabulary.end = 0;  // without the new rows
  const io::Checkpoint checkpoint =
      model::open_checkpoint(settings.model, {}, {}, false, vocabulary);
  const int64_t vocab_size =
      model::parse_config(checkpoint.config(), checkpoint.config_name()).vocab_size;
  SharedTokenizer tokenizer;
  const auto codec = [&] {
    tokenizer = load_tokenizer(checkpoint, vocab_size);
    return data::make_text_codec(tokenizer);
  };
  data::ReadSettings few = reader_settings(settings);
  few.max_per_file = count;
  const data::Examples examples =
      data::read_examples(data::parse_sources(settings.data), few, vocab_size, codec);
  tokenizer = tokenizer ? tokenizer : find_tokenizer(checkpoint, vocab_size);
  return {
      interleave_files(examples, count), examples.files, examples.forms,
      [tokenizer](int64_t id) { return tokenizer ? tokenizer->piece(id) : fmt::format("{}", id); }};
}

}  // namespace moe::train
