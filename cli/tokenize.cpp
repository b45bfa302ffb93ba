// moe tokenize: what a folder's tokenizer makes of a text; of the model nothing is read.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <sstream>

#include "cli/commands.h"
#include "cli/flags.h"
#include "core/base/error.h"
#include "core/base/json.h"
#include "core/base/option.h"
#include "core/base/read_file.h"
#include "core/base/text.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::cli {

namespace {

struct TokenizeFlags {
  std::string model, input = "-";
  bool json = false;
};

// A file as a stream that lets the errors of its reads out.
struct FileStream : private FileReader, public std::istream {
  explicit FileStream(const std::string& file) : FileReader(file), std::istream(this) {
    exceptions(std::ios::badbit);
  }
};

// Returns true if TEXT is the text itself: neither "-" nor the name of a file.
bool is_text(const std::string& input) {
  std::error_code ignored;
  return input != "-" && !std::filesystem::is_regular_file(input, ignored);
}

// Opens standard input or a file.
std::unique_ptr<std::istream> open_input(const std::string& input) {
  if (input == "-") {
    return std::make_unique<std::istream>(std::cin.rdbuf());
  }
  return std::make_unique<FileStream>(input);
}

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{}{:02X}", text.empty() ? "" : " ", static_cast<uint8_t>(byte));
  }
  return text;
}

void print_row(const io::Tokenizer& tokenizer, int64_t id, const std::string& bytes) {
  print_text("{:>8}  {:<24}  {}\n", id, terminal_text(tokenizer.piece(id), /*one_line=*/true),
             bytes);
}

void print_table(const io::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int64_t> ids = tokenizer.encode(text);
  const std::vector<int64_t> around = tokenizer.with_special({});
  const auto with_special = tokenizer.with_special(ids);
  print_text("{:>8}  {:<24}  {}\n", "id", "piece", "bytes");
  constexpr int64_t kText = -1;  // no token: where it stands, the text would
  const auto places = tokenizer.with_special({kText});
  const auto first =
      static_cast<size_t>(std::find(places.begin(), places.end(), kText) - places.begin());
  for (size_t i = 0; i < with_special.size(); ++i) {
    const bool is_special = i < first || i >= first + ids.size();
    print_row(tokenizer, with_special[i],
              is_special ? "(special)" : hex(tokenizer.bytes(with_special[i])));
  }
  print_text("{} tokens of {} bytes, {} special ones around them\n", ids.size(), text.size(),
             around.size());
}

// Prints the ids of a text as one line of JSON.
void print_json(const io::Tokenizer& tokenizer, const std::string& text) {
  const std::vector<int64_t> ids = tokenizer.encode(text);
  const OrderedJson out = {{"ids", ids},
                           {"ids_special", tokenizer.with_special(ids)},
                           {"decoded", tokenizer.decode(ids)}};
  print_text("{}\n", json_text(out));
}

// Prints a line for each line {"text": ...} of `in`, which error messages call `name`.
void print_json_lines(const io::Tokenizer& tokenizer, std::istream& in, const std::string& name) {
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    const std::string where = fmt::format("{} line {}", name, number);
    print_json(tokenizer, get_string(parse_json(line, where), "text", where));
  }
}

void run(const TokenizeFlags& flags) {
  const auto tokenizer = io::Tokenizer::load(flags.model, /*vocab_size=*/0);
  if (is_text(flags.input)) {
    flags.json ? print_json(tokenizer, flags.input) : print_table(tokenizer, flags.input);
    return;
  }
  const auto in = open_input(flags.input);
  if (flags.json) {
    print_json_lines(tokenizer, *in, flags.input == "-" ? "standard input" : flags.input);
    return;
  }
  print_table(tokenizer, std::string(std::istreambuf_iterator<char>(*in), {}));
}

}  // namespace

void add_tokenize(CLI::App& app) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* command =
      app.add_subcommand("tokenize", "pieces, ids and bytes of a text, by a folder's tokenizer");
  add_options(*command,
              {{.name = "model",
                .member = &flags->model,
                .group = group::kModel,
                .help = "a folder with a tokenizer",
                .spelled = "MODEL",
                .is_required = true},
               {.name = "text",
                .member = &flags->input,
                .group = group::kModel,
                .help = "a text, a file, or - for standard input; with --json a file or - "
                        "holds lines of {\"text\": ...}",
                .spelled = "TEXT"}});
  add_json(*command, flags->json);
  command->callback([flags] { run(*flags); });
}

}  // namespace moe::cli
