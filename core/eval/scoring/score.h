#pragma once
// Log-likelihoods of requests (sums of token log-probabilities), and routing statistics by token.
// With a capacity, routing groups depend only on the requests, group_tokens and the number of
// logical ranks, not on batch_tokens or the number of processes.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/scoring/response_cache.h"

namespace moe::eval {

struct Scores;

struct ScoreSettings {
  model::RoutingOptions routing;
  int64_t batch_tokens = 0;     // input tokens per forward pass, without a capacity; 0: auto
  int64_t group_tokens = 4096;  // input tokens of a routing group, per logical rank
  // Called after each forward pass; may be empty. If set, requests do not share prefixes.
  std::function<void(const Forward&)> observe = {};
  ResponseCache* cache = nullptr;  // may be null; requires an empty `observe`
  // Called after each forward pass, computed or cached, with the indices of its requests; may be
  // empty. `so_far` has the scores of all requests that are complete.
  std::function<void(const std::vector<size_t>& requests, const Scores& so_far)> answered = {};
  // Ranks that share the forward passes; null for a single process. With ranks, scoring is
  // collective: all ranks get the scores and callbacks of a single process.
  distributed::Comm* ranks = nullptr;
};

struct Scores {
  std::vector<Score> scores;                   // in the order of the requests
  std::vector<route::CounterValues> counters;  // one per MoE layer, summed over all forward passes
  int64_t forwards = 0;                        // forward passes; with a capacity, one per group
  int64_t input_tokens = 0;                    // of all forward passes; a shared prefix counts once
  int64_t head_rows = 0;                       // rows of logits that this rank computed
};

// Returns the number of tokens of the largest forward pass of score_requests(). Does not need the
// loaded model. `mapped_bytes`: model::Llama::mapped_bytes() of the model.
int64_t largest_forward(const model::ModelConfig& config, uint64_t mapped_bytes,
                        const std::vector<Request>& requests, const ScoreSettings& settings);

// Returns the maximum number of tokens of a forward pass with several requests. A request of more
// tokens has a forward pass by itself.
int64_t forward_limit(const model::ModelConfig& config, uint64_t mapped_bytes,
                      const ScoreSettings& settings);

// Scores all requests. Throws UserError if a log-probability is not finite, or if the ranks'
// requests or settings differ.
Scores score_requests(const model::Llama& llama, const std::vector<Request>& requests,
                      const ScoreSettings& settings);

struct VocabularyEntry {
  int64_t id = 0;
  std::string piece;     // as the tokenizer stores it
  int64_t count = 0;     // occurrences among the input tokens
  int64_t rows = 0;      // (token, expert) pairs over all MoE layers
  int64_t complete = 0;  // occurrences as a complete word
};

// Counters of a set of tokens, one entry per MoE layer. Only tokens, fr_filled, ir_tokens,
// dropped_tokens, unserved_tokens and tokens_per_expert are set.
using TokenCounts = std::vector<route::CounterValues>;

struct TokenStats {
  struct Source {
    std::string name;
    TokenCounts layers;
  };
  std::vector<Source> sources;              // in order of appearance
  std::vector<VocabularyEntry> vocabulary;  // entries with count > 0, by id
};

// Properties of a tokenizer piece. A token is a complete word if it begins a word and the next
// token also begins a word or does not begin with a letter.
struct PieceShape {
  bool starts_word = false;    // begins with U+2581 or a space
  bool starts_letter = false;  // begins with a letter
};
// Returns the properties of `piece`. Letters are the Unicode categories L* and M*; a byte piece
// "<0x..>" or truncated UTF-8 does not begin with one.
PieceShape piece_shape(const std::string& piece);

// Sums of the routing counters of tokens: by source of the text, over requests with right answers,
// and by vocabulary entry (Dynamic MoE, Tables 2 to 4). Requires forward passes with
// model::RoutingOptions::count_tokens.
class TokenTally {
 public:
  // `tokenizer` must outlive the object.
  TokenTally(const io::Tokenizer& tokenizer, int64_t vocab_size, size_t layers);

  // Sets the requests of the following forward passes. `requests` must outlive the calls of add().
  void begin(const std::vector<Request>& requests);
  void add(const Forward& forward);
  // Returns the sums over the gold requests since begin(); empty if there are none.
  const TokenCounts& gold() const { return gold_; }
  TokenStats finish() const;

 private:
  void add_request(size_t index, const int64_t* rows, int64_t all_tokens, int64_t columns);

  const io::Tokenizer& tokenizer_;
  size_t layers_;
  std::vector<PieceShape> shapes_;           // [V]
  std::vector<VocabularyEntry> vocabulary_;  // [V], without pieces
  std::vector<TokenStats::Source> sources_;
  std::map<std::string, size_t> source_numbers_;  // name -> index into sources_
  const std::vector<Request>* requests_ = nullptr;
  std::vector<size_t> source_indices_;  // [requests] index into sources_
  TokenCounts gold_;
};

inline constexpr int64_t kTextWindow = 2048;  // tokens, as in Dynamic MoE

// Reads raw text as requests without a token to score, for routing statistics (Dynamic MoE, Tables
// 2 and 4). Reads the first `limit` texts of each file (core/data/records.h: plain text, or JSON
// records with a "text" and an optional "source"). Adds the encoder's BOS to each text, appends
// `end_id`, and splits it into windows of kTextWindow tokens, or of the model's window if that is
// shorter. Throws UserError if a file is missing, a folder or without text, or a record is invalid.
std::vector<Request> read_text_windows(const std::vector<std::filesystem::path>& files,
                                       const TextEncoder& encoder, int64_t end_id,
                                       std::optional<int64_t> limit);

}  // namespace moe::eval
