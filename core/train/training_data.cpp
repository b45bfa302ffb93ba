#include "core/train/training_data.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/io/tokenizer.h"
#include "core/model/config.h"

namespace moe::train {

namespace {

using SharedTokenizer = std::shared_ptr<const io::Tokenizer>;

data::ReadSettings read_settings(const TrainSettings& settings) {
  return {settings.objective,
          settings.format,
          data::Template::parse(settings.text_template),
          settings.loss_on,
          0};
}

// Whether encode() puts sentencepiece's dummy space (U+2581) before a text.
bool adds_space(const io::Tokenizer& tokenizer) {
  const std::vector<int64_t> ids = tokenizer.encode("a");
  return !ids.empty() && tokenizer.piece(ids.front()).starts_with("\u2581");
}

data::TextCodec codec_of(const SharedTokenizer& tokenizer) {
  return {[tokenizer](std::string_view text) { return tokenizer->encode(text); },
          tokenizer->bos_id(),
          tokenizer->eos_id(),
          adds_space(*tokenizer)};
}

SharedTokenizer load_tokenizer(const io::Checkpoint& checkpoint, int64_t vocab_size) {
  return std::make_shared<io::Tokenizer>(io::Tokenizer::load(checkpoint.folder(), vocab_size));
}

// The first `count` examples: each file's first, then each file's second, and so on.
void take_turns(data::Examples& examples, size_t count) {
  std::vector<std::vector<data::Example>> of_file(examples.files.size());
  for (auto& example : examples.items) {
    of_file[static_cast<size_t>(example.file)].push_back(std::move(example));
  }
  examples.items.clear();
  for (size_t place = 0; place < count; ++place) {
    for (auto& file : of_file) {
      if (place < file.size() && examples.items.size() < count) {
        examples.items.push_back(std::move(file[place]));
      }
    }
  }
}

}  // namespace

data::Examples read_data(const TrainSettings& settings,
                         const io::Checkpoint& checkpoint,
                         int64_t vocab_size) {
  const auto codec = [&] { return codec_of(load_tokenizer(checkpoint, vocab_size)); };
  return data::read_examples(
      data::parse_sources(settings.data), read_settings(settings), vocab_size, codec);
}

std::vector<std::string> describe_data(const data::Examples& examples) {
  std::vector<int64_t> counts(examples.files.size(), 0);
  for (const auto& example : examples.items) {
    ++counts[static_cast<size_t>(example.file)];
  }
  const double total = std::accumulate(examples.weights.begin(), examples.weights.end(), 0.0);
  std::vector<std::string> lines;
  for (size_t file = 0; file < examples.files.size(); ++file) {
    lines.push_back(fmt::format(
        "{}: {}; {} examples", examples.files[file], examples.forms.at(file), counts[file]));
    if (total > 0) {
      lines.back() +=
          fmt::format(", {:.4g} % of those drawn", 100 * examples.weights[file] / total);
    }
  }
  return lines;
}

Samples read_samples(const TrainSettings& settings, int64_t count) {
  check_numbers(settings);
  const io::Checkpoint checkpoint(settings.model);
  const int64_t vocab_size =
      model::parse_config(checkpoint.config(), checkpoint.config_name()).vocab_size;
  SharedTokenizer tokenizer;
  const auto codec = [&] {
    tokenizer = load_tokenizer(checkpoint, vocab_size);
    return codec_of(tokenizer);
  };
  data::ReadSettings few = read_settings(settings);
  few.most_per_file = count;
  Samples samples;
  samples.examples =
      data::read_examples(data::parse_sources(settings.data), few, vocab_size, codec);
  take_turns(samples.examples, static_cast<size_t>(count));
  if (!tokenizer) {  // rows alone: names are a service, ids do without a tokenizer
    try {
      tokenizer = load_tokenizer(checkpoint, vocab_size);
    } catch (const UserError&) {
      samples.piece = [](int64_t id) { return fmt::format("{}", id); };
      return samples;
    }
  }
  samples.piece = [tokenizer](int64_t id) { return tokenizer->piece(id); };
  return samples;
}

}  // namespace moe::train
