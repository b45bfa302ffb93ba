// moe tokenize: prints the tokens of a text, or of the records of training data. Reads no weights.

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "cli/flags.h"
#include "cli/output.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/tokenizer/tokenizer.h"
#include "core/train/config/settings.h"
#include "core/train/step/training_data.h"

namespace moe::cli {

namespace {

struct TokenizeFlags {
  train::TrainSettings settings;  // model and the options of records
  std::string input = "-", chat;
  bool json = false;
};

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// Returns true if the argument TEXT is a text, false if it is "-" or the name of a file.
bool is_text(const std::string& input) {
  std::error_code ignored;
  const auto status = std::filesystem::status(input, ignored);
  return input != "-" && (!exists(status) || is_directory(status));
}

std::string hex(std::string_view bytes) {
  const std::vector<uint8_t> numbers(bytes.begin(), bytes.end());
  return fmt::format("{:02X}", fmt::join(numbers, " "));
}

void print_table(const io::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int64_t> ids = tokenizer.encode(text);
  const std::vector<int64_t> with_special = tokenizer.with_special(ids);
  constexpr int64_t kText = -1;  // placeholder that marks the position of the text
  const auto positions = tokenizer.with_special({kText});
  const auto first = static_cast<size_t>(std::ranges::find(positions, kText) - positions.begin());
  print_text("{:>8}  {:<24}  {}\n", "id", "piece", "bytes");
  for (size_t i = 0; i < with_special.size(); ++i) {
    const int64_t id = with_special[i];
    const bool is_special = i < first || i >= first + ids.size();
    print_text("{:>8}  {:<24}  {}\n", id, terminal_line(tokenizer.piece(id)),
               is_special ? "(special)" : hex(tokenizer.bytes(id)));
  }
  print_text("{} tokens for {} bytes, plus {} special tokens\n", ids.size(), text.size(),
             with_special.size() - ids.size());
}

void print_ids(const io::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int64_t> ids = tokenizer.encode(text);
  print_json({{"ids", ids},
              {"ids_special", tokenizer.with_special(ids)},
              {"decoded", tokenizer.decode(ids)}});
}

// Prints one JSON line for each line {"text": ...} of `in`. `name`: its name in error messages.
void print_json_lines(const io::Tokenizer& tokenizer, FileReader& in, const std::string& name) {
  std::string line;
  for (int64_t number = 1; in.read_line(line, kNoLimit); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string where = fmt::format("{} line {}", name, number);
    print_ids(tokenizer, get_string(parse_json(line, where), "text", where));
  }
}

OrderedJson to_json(const data::Example& example, const io::Tokenizer* tokenizer) {
  std::vector<int> loss;
  std::string text;
  for (size_t t = 0; t < example.ids.size(); ++t) {
    loss.push_back(data::carries_loss(example, t) ? 1 : 0);
    text += tokenizer == nullptr ? "" : tokenizer->bytes(example.ids[t]);
  }
  return {{"ids", example.ids}, {"loss", loss}, {"text", replace_invalid_utf8(text)}};
}

// Prints the examples of the training data in flags.chat.
void print_records(const TokenizeFlags& flags) {
  USER_ERROR_IF(flags.input != "-", "TEXT and --chat: give one of them");
  train::TrainSettings settings = flags.settings;
  settings.data = {flags.chat};
  settings.threads = 1;  // prints each example before the next record is read
  const auto print = [&](const data::Example& example, const std::string& where,
                         const io::Tokenizer* tokenizer) {
    flags.json ? print_json(to_json(example, tokenizer))
               : print_example(example_text(example, where, tokenizer));
  };
  for (const auto& line : train::stream_samples(settings, 0, Pipes::kAllowed, print)) {
    print_text(stderr, "{}\n", terminal_line(line));
  }
}

void run(const TokenizeFlags& flags) {
  if (!flags.chat.empty()) {
    return print_records(flags);
  }
  const auto tokenizer = io::Tokenizer::load(flags.settings.model, /*vocab_size=*/0);
  if (is_text(flags.input)) {
    return flags.json ? print_ids(tokenizer, flags.input) : print_table(tokenizer, flags.input);
  }
  const std::string name = flags.input == "-" ? "standard input" : flags.input;
  FileReader in(
      flags.input == "-" ? open_standard_input() : open_to_read(flags.input, Pipes::kAllowed),
      name);
  flags.json ? print_json_lines(tokenizer, in, name)
             : print_table(tokenizer, in.read_rest(kNoLimit));
}

Options options(TokenizeFlags& flags) {
  return concat(
      {{positional("MODEL", &flags.settings.model, group::kModel, "directory with a tokenizer"),
        positional(
            "TEXT", &flags.input, group::kModel,
            "text, file, or - for standard input; with --json, a file has lines {\"text\": ...}",
            /*is_required=*/false),
        {"chat", &flags.chat, group::kData,
         "training data as of moe train --data, or - for standard input: print the tokens of each "
         "record and which carry loss; with --json {\"ids\", \"loss\", \"text\"}: loss[i] is 1 if "
         "predicting ids[i] from the ids before it is part of the loss"}},
       train::record_options(flags.settings),
       {json_option(flags.json)}});
}

}  // namespace

void add_tokenize(CLI::App& app) {
  CLI::App& command = add_command<const TokenizeFlags&>(
      app, "tokenize", "print ids, pieces and bytes of a text", run, options);
  train::TrainSettings named;
  for (const Option& option : train::record_options(named)) {
    command.get_option(flag_name(option))->needs("--chat");
  }
  add_examples(command,
               "moe tokenize my-llama \"Hello world\"\n"
               "echo '{\"text\": \"Hello world\"}' | moe tokenize my-llama - --json\n"
               "moe tokenize my-llama --chat instructions.jsonl --json");
}

}  // namespace moe::cli
