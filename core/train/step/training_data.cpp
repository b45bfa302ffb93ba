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
          settings.threads > 0 ? settings.threads : cores,
          Pipes::kRefused,
          data::parse_columns(settings.columns),
          settings.bad_records,
          settings.overlong,
          settings.overlong == data::Overlong::kError ? 0 : settings.seq_len.value_or(0)};
}

// Adds a line about the template, unless all examples are rows or documents.
void add_template(const TrainSettings& settings, bool all_rows, std::vector<std::string>& lines) {
  if (settings.objective == data::Objective::kInstruct && !all_rows) {
    lines.push_back("template: " + parse_template(settings).description());
  }
}

SharedTokenizer load_tokenizer(const std::filesystem::path& folder, int64_t vocab_size,
                               const io::EditedFiles& edited) {
  return std::make_shared<io::Tokenizer>(io::Tokenizer::load(folder, vocab_size, edited));
}

}  // namespace

std::shared_ptr<const io::Tokenizer> find_tokenizer(const std::filesystem::path& folder,
                                                    int64_t vocab_size,
                                                    const io::EditedFiles& edited) {
  try {
    return load_tokenizer(folder, vocab_size, edited);
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
    tokens = form ? form->special_tokens() : std::vector<std::string>();
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
  const auto codec = [&] {
    return data::make_text_codec(
        load_tokenizer(checkpoint.folder(), vocab_size, checkpoint.edited_files()));
  };
  const data::TokenizerSource source = {
      io::tokenizer_file(checkpoint.folder()),
      io::special_token_key(checkpoint.folder()) + settings.add_tokens};
  std::vector<std::string> notes;
  data::Examples examples = data::open_or_tokenize(
      {data::parse_sources(settings.data), reader_settings(settings), vocab_size, source, codec,
       data::cache_location(settings.cache), shared, on_progress},
      notes);
  lines = describe_data(examples);
  add_template(settings, examples.all_rows, lines);
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
  const SharedTokenizer tokenizer =
      load_tokenizer(parent.folder(), vocab_size, parent.edited_files());
  std::vector<int64_t> end;
  try {
    end = data::question_tokens(form, "a", data::make_text_codec(tokenizer)).end;
  } catch (const UserError&) {  // the template refuses a question alone
  }
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

std::vector<std::string> stream_samples(const TrainSettings& settings, int64_t max_per_file,
                                        Pipes pipes, const SampleSink& sink) {
  check_numbers(settings);
  check_data_named(settings);
  const model::VocabularyExtension added = extend_vocabulary(settings);
  const int64_t vocab_size =
      added.vocab_size > 0 ? added.vocab_size : model::read_config(settings.model).vocab_size;
  const SharedTokenizer tokenizer = find_tokenizer(settings.model, vocab_size, added.files);
  const auto codec = [&] {  // load_tokenizer() throws the reason why there is none
    return data::make_text_codec(
        tokenizer ? tokenizer : load_tokenizer(settings.model, vocab_size, added.files));
  };
  data::ReadSettings reading = reader_settings(settings);
  reading.max_per_file = max_per_file;
  reading.pipes = pipes;
  const auto sources = data::parse_sources(settings.data);
  const auto name = [&](size_t file) { return data::data_file_name(sources[file].file, pipes); };
  bool all_rows = true;
  const auto forms =
      data::stream_examples(sources, reading, vocab_size, codec, [&](const data::Example& example) {
        sink(example,
             fmt::format("{} line {}", name(static_cast<size_t>(example.file)), example.line),
             tokenizer.get());
      });
  std::vector<std::string> lines;
  for (const auto& form : forms) {
    all_rows = all_rows && form.format == data::Format::kRows;
    lines.push_back(fmt::format("{}: {}", name(lines.size()), form.summary()));
  }
  add_template(settings, all_rows, lines);
  return lines;
}

}  // namespace moe::train
