#include "core/eval/scoring/token_tally.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "core/base/error.h"
#include "core/data/records.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"

namespace moe::eval {

namespace {

constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

}  // namespace

PieceShape shape_of(const std::string& piece) {
  return {piece.starts_with(kSpaceMark) || piece.starts_with(' '), begins_with_letter(piece)};
}

void TokenCounts::add_token(const int64_t* rows, int64_t experts) {
  ++tokens;
  accepted += rows[0];
  filled += rows[1];
  rectified += rows[2];
  dropped_tokens += rows[0] + rows[1] == 0;
  unserved_tokens += rows[0] + rows[1] + rows[2] == 0;
  tokens_per_expert.resize(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) {
    tokens_per_expert[static_cast<size_t>(expert)] += rows[3 + expert];
  }
}

void TokenCounts::add(const TokenCounts& other) {
  tokens += other.tokens;
  accepted += other.accepted;
  filled += other.filled;
  rectified += other.rectified;
  dropped_tokens += other.dropped_tokens;
  unserved_tokens += other.unserved_tokens;
  tokens_per_expert.resize(std::max(tokens_per_expert.size(), other.tokens_per_expert.size()));
  for (size_t expert = 0; expert < other.tokens_per_expert.size(); ++expert) {
    tokens_per_expert[expert] += other.tokens_per_expert[expert];
  }
}

TokenTally::TokenTally(const io::Tokenizer& tokenizer, int64_t vocab_size, size_t layers)
    : tokenizer_(tokenizer), layers_(layers), vocabulary_(static_cast<size_t>(vocab_size)) {
  for (int64_t id = 0; id < vocab_size; ++id) {
    const bool has_marks = tokenizer.kind() == io::TokenizerKind::kSentencepiece;
    shapes_.push_back(shape_of(has_marks ? tokenizer.piece(id) : tokenizer.bytes(id)));
  }
}

void TokenTally::begin(const std::vector<Request>& requests,
                       const std::vector<RequestLabel>& labels) {
  MOE_CHECK(requests.size() == labels.size(), "{} and {}", requests.size(), labels.size());
  requests_ = &requests;
  labels_ = &labels;
  source_of_.clear();
  gold_.clear();
  std::map<std::string, size_t> index;
  for (size_t i = 0; i < sources_.size(); ++i) {
    index[sources_[i].name] = i;
  }
  for (const auto& label : labels) {
    const auto [entry, is_new] = index.try_emplace(label.source, sources_.size());
    if (is_new) {
      sources_.push_back({label.source, std::vector<TokenCounts>(layers_)});
    }
    source_of_.push_back(entry->second);
    if (label.is_gold) {
      gold_.resize(layers_);
    }
  }
}

// Whether the token `id` is a word by itself where `next` follows it.
bool TokenTally::is_complete_word(int64_t id, int64_t next) const {
  const PieceShape after = shapes_.at(static_cast<size_t>(next));
  return shapes_.at(static_cast<size_t>(id)).starts_word &&
         (after.starts_word || !after.starts_letter);
}

// `rows` [L, T, 3 + E] from the request's first token on, T = all_tokens, 3 + E = columns.
void TokenTally::add_request(size_t index, const int64_t* rows, int64_t all_tokens,
                             int64_t columns) {
  const Request& request = (*requests_)[index];
  auto& source = sources_[source_of_[index]].layers;
  for (size_t layer = 0; layer < layers_; ++layer) {
    const int64_t* next = rows + static_cast<int64_t>(layer) * all_tokens * columns;
    for (int64_t i = 0; i < request.inputs(); ++i, next += columns) {
      source[layer].add_token(next, columns - 3);
      if ((*labels_)[index].is_gold) {
        gold_[layer].add_token(next, columns - 3);
      }
      vocabulary_[static_cast<size_t>(request.tokens[static_cast<size_t>(i)])].rows +=
          next[0] + next[1] + next[2];
    }
  }
  for (size_t i = 0; i + 1 < request.tokens.size(); ++i) {
    VocabularyEntry& entry = vocabulary_[static_cast<size_t>(request.tokens[i])];
    ++entry.count;
    entry.complete += is_complete_word(request.tokens[i], request.tokens[i + 1]);
  }
}

void TokenTally::add(const Forward& forward) {
  MOE_CHECK(forward.token_rows.size() == layers_, "{} of {} layers", forward.token_rows.size(),
            layers_);
  const at::Tensor rows = at::stack(forward.token_rows).cpu();  // [L, T, 3 + E]
  const int64_t* first = rows.const_data_ptr<int64_t>();
  for (const size_t index : forward.requests) {
    add_request(index, first, rows.size(1), rows.size(2));
    first += (*requests_)[index].inputs() * rows.size(2);
  }
}

TokenStats TokenTally::finish() const {
  TokenStats stats{sources_, {}};
  for (size_t id = 0; id < vocabulary_.size(); ++id) {
    if (vocabulary_[id].count > 0) {
      stats.vocabulary.push_back(vocabulary_[id]);
      stats.vocabulary.back().id = static_cast<int64_t>(id);
      stats.vocabulary.back().piece = tokenizer_.piece(static_cast<int64_t>(id));
    }
  }
  return stats;
}

namespace {

struct Text {
  std::string text, source;
};

Text read_one(const data::RecordReader& reader, data::Record& record,
              const std::filesystem::path& file) {
  if (reader.form() == data::RecordForm::kText) {
    return {std::move(record.text), file.string()};
  }
  const std::string where = fmt::format("{} line {}", file.string(), record.line);
  const Json json = parse_json(record.text, where);
  if (!json.is_object()) {
    throw UserError("{}: not a JSON object; a record is {{\"text\": .., \"source\": ..}}", where);
  }
  return {get_string(json, "text", where), source_of(json, file.string())};
}

void add_windows(const Text& text, const TextEncoder& encoder, int64_t end_id,
                 TextWindows& windows) {
  const std::vector<int64_t> ids = encode_text(encoder, text.text);
  const auto size = static_cast<int64_t>(ids.size());
  const int64_t window = std::min(kTextWindow, encoder.window);
  for (int64_t begin = 0; begin < size; begin += window) {
    const int64_t end = std::min(begin + window, size);
    Request request;
    request.tokens.assign(ids.begin() + begin, ids.begin() + end);
    request.tokens.push_back(end < size ? ids[static_cast<size_t>(end)] : end_id);
    windows.requests.push_back(std::move(request));
    windows.labels.push_back({text.source, false});
  }
}

}  // namespace

TextWindows read_text_windows(const std::vector<std::filesystem::path>& files,
                              const TextEncoder& encoder, int64_t end_id,
                              std::optional<int64_t> limit) {
  TextWindows windows;
  for (const auto& file : files) {
    if (!std::filesystem::is_regular_file(file)) {
      throw UserError("--stats-text {}: {}", file.string(),
                      std::filesystem::exists(file) ? "not a file" : "no such file");
    }
    data::RecordReader reader(file);
    const size_t before = windows.requests.size();
    for (int64_t texts = 0; texts < limit.value_or(texts + 1); ++texts) {
      auto record = reader.next();
      if (!record) {
        break;
      }
      add_windows(read_one(reader, *record, file), encoder, end_id, windows);
    }
    if (windows.requests.size() == before) {
      throw UserError("{}: no text in it", file.string());
    }
  }
  return windows;
}

}  // namespace moe::eval
