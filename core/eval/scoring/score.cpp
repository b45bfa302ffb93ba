// Sequences are packed without padding. Shared prefixes are computed once. Logits are computed only
// at positions whose next token is scored. score_test.cpp compares with a reference that runs one
// request at a time and computes all logits.

#include "core/eval/scoring/score.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string_view>

#include "core/base/error.h"
#include "core/data/records.h"
#include "core/eval/formats/lines.h"
#include "core/eval/formats/text.h"
#include "core/io/checksums.h"
#include "kernels/ops/token_log_probs.h"

namespace moe::eval {

using at::Tensor;

namespace {

std::string digest(const std::vector<Request>& requests) {
  io::ContentHash hash;
  for (const auto& request : requests) {
    const std::vector<int64_t> lengths = {request.scored,
                                          static_cast<int64_t>(request.tokens.size())};
    hash.update(std::as_bytes(std::span(lengths)));
    hash.update(std::as_bytes(std::span(request.tokens)));
  }
  return hash.digest().hex();
}

// Throws UserError on all ranks if their requests or settings differ.
void check_same_requests(const model::Llama& llama, const std::vector<Request>& requests,
                         const ScoreSettings& settings) {
  distributed::Comm* ranks = settings.ranks;
  if (ranks != nullptr && ranks->size() > 1) {
    distributed::check_same_on_all_ranks(
        *ranks, "the requests or settings",
        fmt::format("{} requests {}\nrouter {}\nep-ranks {}\nbatch-tokens {}\n"
                    "group-tokens {}\nprecision {}\n",
                    requests.size(), digest(requests),
                    route::to_string(settings.routing.router, /*every_option=*/true),
                    settings.routing.ep_ranks, settings.batch_tokens, settings.group_tokens,
                    llama.product_type() == at::kBFloat16 ? "bf16" : "fp32"));
  }
}

// A token whose log-probability is added to a request's score.
struct ScoredToken {
  int64_t row;     // input row whose logits predict the token
  int64_t target;  // id of the token
  size_t request;  // index of the request
};

struct PackedBatch {
  model::Packed inputs;                       // [T]
  std::vector<ScoredToken> scored;            // sorted by row
  std::vector<kernels::TargetToken> targets;  // one per entry of `scored`; rows index output_rows
  std::vector<size_t> requests;               // indices, in the order of the inputs
};

// Packs the inputs of a batch: all roots, then all branches.
PackedBatch pack(const std::vector<Request>& requests, const std::vector<PrefixGroup>& groups) {
  PackedBatch batch;
  std::vector<int64_t> ids, root_rows;
  // Appends inputs [begin, begin + length) of a request as a sequence. Returns its first row.
  const auto append = [&](size_t request, int64_t begin, int64_t length, int64_t prefix) {
    const auto row = static_cast<int64_t>(ids.size());
    const auto from = requests[request].tokens.begin() + begin;
    ids.insert(ids.end(), from, from + length);
    batch.inputs.lengths.push_back(length);
    batch.inputs.prefix_index.push_back(prefix);
    return row;
  };
  for (const PrefixGroup& group : groups) {
    root_rows.push_back(append(group.request, 0, group.root, -1));
  }
  for (size_t number = 0; number < groups.size(); ++number) {
    const PrefixGroup& group = groups[number];
    std::vector<int64_t> branch_rows;
    for (const auto& [request, length] : group.branches) {
      branch_rows.push_back(append(request, group.root, length, static_cast<int64_t>(number)));
    }
    for (const auto& [index, branch] : group.members) {
      const Request& request = requests[index];
      for (int64_t i = request.inputs() - request.scored; i < request.inputs(); ++i) {
        const int64_t row =
            i < group.root ? root_rows[number] + i : branch_rows[branch] + i - group.root;
        batch.scored.push_back({row, request.tokens[static_cast<size_t>(i) + 1], index});
      }
      batch.requests.push_back(index);
    }
  }
  std::ranges::stable_sort(batch.scored, {}, &ScoredToken::row);
  std::vector<int64_t> rows;  // distinct rows whose logits are needed
  for (const ScoredToken& token : batch.scored) {
    if (rows.empty() || rows.back() != token.row) {
      rows.push_back(token.row);
    }
    batch.targets.push_back({static_cast<int64_t>(rows.size()) - 1, token.target});
  }
  if (!rows.empty()) {
    batch.inputs.output_rows = at::tensor(rows, at::kLong);
  }
  batch.inputs.ids = at::tensor(ids, at::kLong);
  if (batch.inputs.lengths.size() == groups.size()) {
    batch.inputs.prefix_index.clear();  // no branches
  }
  return batch;
}

// Computes the scores of a batch from its hidden states and adds them to `total`. `hidden`: [N, D]
// f32, one row for each of batch.inputs.output_rows.
void add_batch(const model::Llama& llama, const PackedBatch& batch, const Tensor& hidden,
               Scores& total) {
  if (batch.targets.empty()) {
    return;
  }
  total.head_rows += hidden.size(0);
  std::vector<kernels::TokenLogProb> scores;
  llama.with_head([&](const Tensor& weight) {
    scores = kernels::token_log_probs(hidden, weight, llama.product_type(), batch.targets);
  });
  for (size_t i = 0; i < scores.size(); ++i) {
    USER_ERROR_IF(!std::isfinite(scores[i].logprob),
                  "request {}: log-probability {}; check the model's weights for NaN, infinity or "
                  "very large values",
                  batch.scored[i].request + 1, scores[i].logprob);
    Score& score = total.scores[batch.scored[i].request];
    score.is_greedy = (score.tokens == 0 || score.is_greedy) && scores[i].is_argmax;
    score.logprob += scores[i].logprob;
    ++score.tokens;
  }
}

// Returns the output of a forward pass from the cache. If it is not cached, runs the forward pass,
// adds its scores to `total`, and caches the output.
ForwardOutput find_or_run(const model::Llama& llama, const std::vector<Request>& requests,
                          const PackedBatch& batch, const ScoreSettings& settings, Scores& total) {
  const PlannedForward forward{requests, batch.requests, batch.inputs};
  if (settings.cache != nullptr) {
    if (auto scores = settings.cache->find(forward)) {
      return {std::move(*scores)};
    }
  }
  model::ForwardResult result = llama.forward(batch.inputs, settings.routing);
  add_batch(llama, batch, result.hidden, total);
  ForwardOutput output;
  if (!result.token_rows.empty()) {
    output.token_rows = at::stack(result.token_rows).cpu();
  }
  if (!result.counters.empty()) {
    output.scores.counters = route::read_counters(result.counters);
  }
  for (const size_t request : batch.requests) {
    output.scores.scores.push_back(total.scores[request]);
  }
  if (settings.cache != nullptr) {
    settings.cache->store(forward, output.scores);
  }
  return output;
}

// Writes the output of a forward pass, of this or another rank, to `total` and calls the callbacks.
void add_output(const PackedBatch& batch, const ForwardOutput& output,
                const ScoreSettings& settings, Scores& total) {
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    total.scores[batch.requests[i]] = output.scores.scores.at(i);
  }
  const auto& counters = output.scores.counters;
  total.counters.resize(std::max(total.counters.size(), counters.size()));
  for (size_t layer = 0; layer < counters.size(); ++layer) {
    total.counters[layer].add(counters[layer]);
  }
  total.input_tokens += batch.inputs.ids.size(0);
  if (settings.observe) {
    settings.observe({batch.requests, output.token_rows});
  }
  if (settings.answered) {
    settings.answered(batch.requests, total);
  }
}

// Returns the minimum of forward_limit() over all ranks. It differs between ranks if it depends on
// the available memory.
int64_t min_forward_limit(const model::Llama& llama, const ScoreSettings& settings) {
  int64_t tokens = forward_limit(llama.config(), llama.mapped_bytes(), settings);
  const bool is_set =
      settings.batch_tokens > 0 || routes_in_groups(llama.config(), settings.routing.router);
  if (settings.ranks != nullptr && !is_set) {
    for (const auto& limit : distributed::gather_numbers(*settings.ranks, {tokens})) {
      tokens = std::min(tokens, limit.front());
    }
  }
  return tokens;
}

PrefixBatches plan_forwards(const model::ModelConfig& config, const std::vector<Request>& requests,
                            const ScoreSettings& settings, int64_t limit) {
  if (routes_in_groups(config, settings.routing.router)) {
    return pack_in_order(single_request_groups(requests), limit);
  }
  return pack_longest_first(
      settings.observe ? single_request_groups(requests) : find_prefix_groups(requests), limit);
}

// Adds a token to `counts`. `rows`: [3 + E], the token's row of route::count_rows_by_token().
void add_token_rows(const int64_t* rows, int64_t experts, route::CounterValues& counts) {
  ++counts.tokens;
  counts.fr_filled += rows[1];
  counts.ir_tokens += rows[2];
  counts.dropped_tokens += rows[0] + rows[1] == 0;
  counts.unserved_tokens += rows[0] + rows[1] + rows[2] == 0;
  counts.tokens_per_expert.resize(static_cast<size_t>(experts));
  for (int64_t expert = 0; expert < experts; ++expert) {
    counts.tokens_per_expert[static_cast<size_t>(expert)] += rows[3 + expert];
  }
}

// Returns the text and the source of a record.
std::pair<std::string, std::string> parse_text(const data::RecordReader& reader,
                                               data::Record& record,
                                               const std::filesystem::path& file) {
  USER_ERROR_IF(!record.error.empty(), "{}", record.error);
  if (reader.form() == data::RecordForm::kText) {
    return {std::move(record.text), file.string()};
  }
  const std::string where = fmt::format("{} line {}", file.string(), record.line);
  const Json json = parse_json(record.text, where);
  return {get_string(json, "text", where), get_source(json, file.string())};
}

// Appends the windows of a text, each with its next token as target.
void add_windows(const std::string& text, const std::string& source, const TextEncoder& encoder,
                 int64_t end_id, std::vector<Request>& requests) {
  std::vector<int64_t> ids = encode_text(encoder, text);
  ids.push_back(end_id);
  const int64_t inputs = std::ssize(ids) - 1, window = std::min(kTextWindow, encoder.window);
  for (int64_t begin = 0; begin < inputs; begin += window) {
    const int64_t end = std::min(begin + window, inputs);
    requests.push_back({.tokens = {ids.begin() + begin, ids.begin() + end + 1}, .source = source});
  }
}

}  // namespace

int64_t forward_limit(const model::ModelConfig& config, uint64_t mapped_bytes,
                      const ScoreSettings& settings) {
  if (routes_in_groups(config, settings.routing.router)) {
    return settings.group_tokens * settings.routing.ep_ranks;
  }
  return settings.batch_tokens > 0
             ? settings.batch_tokens
             : auto_batch_tokens(config, settings.routing.router, mapped_bytes);
}

int64_t largest_forward(const model::ModelConfig& config, uint64_t mapped_bytes,
                        const std::vector<Request>& requests, const ScoreSettings& settings) {
  int64_t largest = 0;
  const int64_t limit = forward_limit(config, mapped_bytes, settings);
  for (const auto& batch : plan_forwards(config, requests, settings, limit)) {
    const auto add = [](int64_t sum, const PrefixGroup& group) { return sum + group.tokens(); };
    largest = std::max(largest, std::accumulate(batch.begin(), batch.end(), int64_t{0}, add));
  }
  return largest;
}

Scores score_requests(const model::Llama& llama, const std::vector<Request>& requests,
                      const ScoreSettings& settings) {
  check_same_requests(llama, requests, settings);
  const PrefixBatches batches =
      plan_forwards(llama.config(), requests, settings, min_forward_limit(llama, settings));
  const at::NoGradGuard no_gradients;
  Scores total;
  total.scores.resize(requests.size());
  total.forwards = static_cast<int64_t>(batches.size());
  const size_t ranks = num_ranks(settings.ranks), rank = rank_index(settings.ranks);
  for (size_t begin = 0; begin < batches.size(); begin += ranks) {
    std::vector<PackedBatch> round;  // one per rank
    for (size_t i = begin; i < std::min(begin + ranks, batches.size()); ++i) {
      round.push_back(pack(requests, batches[i]));
    }
    std::optional<ForwardOutput> own;
    distributed::on_all_ranks(settings.ranks, [&] {
      if (rank < round.size()) {
        own = find_or_run(llama, requests, round[rank], settings, total);
      }
    });
    const std::vector<ForwardOutput> all = gather_forwards(settings.ranks, own);
    distributed::on_all_ranks(settings.ranks, [&] {
      for (size_t i = 0; i < round.size(); ++i) {
        add_output(round[i], all.at(i), settings, total);
      }
    });
  }
  return total;
}

PieceShape piece_shape(const std::string& piece) {
  constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581
  return {piece.starts_with(kSpaceMark) || piece.starts_with(' '), begins_with_letter(piece)};
}

TokenTally::TokenTally(const io::Tokenizer& tokenizer, int64_t vocab_size, size_t layers)
    : tokenizer_(tokenizer), layers_(layers), vocabulary_(static_cast<size_t>(vocab_size)) {
  for (int64_t id = 0; id < vocab_size; ++id) {
    const bool has_marks = tokenizer.kind() == io::TokenizerKind::kSentencepiece;
    shapes_.push_back(piece_shape(has_marks ? tokenizer.piece(id) : tokenizer.bytes(id)));
  }
}

void TokenTally::begin(const std::vector<Request>& requests) {
  requests_ = &requests;
  source_indices_.clear();
  gold_.clear();
  for (const auto& request : requests) {
    const auto [entry, is_new] = source_numbers_.try_emplace(request.source, sources_.size());
    if (is_new) {
      sources_.push_back({request.source, TokenCounts(layers_)});
    }
    source_indices_.push_back(entry->second);
    if (request.is_gold) {
      gold_.resize(layers_);
    }
  }
}

// `rows`: row of the request's first token in a tensor [L, T = all_tokens, 3 + E = columns].
void TokenTally::add_request(size_t index, const int64_t* rows, int64_t all_tokens,
                             int64_t columns) {
  const Request& request = (*requests_)[index];
  auto& source = sources_[source_indices_[index]].layers;
  for (int64_t i = 0; i < request.inputs(); ++i) {
    const auto id = static_cast<size_t>(request.tokens[i]);
    const PieceShape next = shapes_.at(static_cast<size_t>(request.tokens[i + 1]));
    VocabularyEntry& entry = vocabulary_[id];
    ++entry.count;
    entry.complete += shapes_[id].starts_word && (next.starts_word || !next.starts_letter);
    for (size_t layer = 0; layer < layers_; ++layer) {
      const int64_t* row = rows + (static_cast<int64_t>(layer) * all_tokens + i) * columns;
      add_token_rows(row, columns - 3, source[layer]);
      if (request.is_gold) {
        add_token_rows(row, columns - 3, gold_[layer]);
      }
      entry.rows += row[0] + row[1] + row[2];
    }
  }
}

void TokenTally::add(const Forward& forward) {
  const at::Tensor& rows = forward.token_rows;
  MOE_CHECK(static_cast<size_t>(rows.size(0)) == layers_, "{} layers", rows.size(0));
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

std::vector<Request> read_text_windows(const std::vector<std::filesystem::path>& files,
                                       const TextEncoder& encoder, int64_t end_id,
                                       std::optional<int64_t> limit) {
  std::vector<Request> requests;
  for (const auto& file : files) {
    USER_ERROR_IF(!std::filesystem::is_regular_file(file), "--stats-text {}: {}", file.string(),
                  std::filesystem::exists(file) ? "not a file" : "no such file");
    data::RecordReader reader(file);
    const size_t before = requests.size();
    for (int64_t texts = 0; texts < limit.value_or(texts + 1); ++texts) {
      auto record = reader.next();
      if (!record) {
        break;
      }
      const auto [text, source] = parse_text(reader, *record, file);
      add_windows(text, source, encoder, end_id, requests);
    }
    USER_ERROR_IF(requests.size() == before, "{}: the file has no text", file.string());
  }
  return requests;
}

}  // namespace moe::eval
