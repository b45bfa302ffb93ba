#pragma once
// The statistics file of `moe eval --stats FILE`: one JSON object.
//
//   version, model, router, ep_ranks, experts, k (null for routers without k), group_tokens (tokens
//            routed together, all ranks; null: no capacity), row_bytes, forwards
//   total    counters over all MoE layers and forward passes (core/route/counters.h)
//   layers   [{"layer": number, counters}]
//   task     [{"task": name, "total", "layers", "gold"}] in the order of --tasks: counters of all
//            choices. "gold" has the token counts of context + right answer alone (Dynamic MoE,
//            Table 3: question + gold answer as one text), total and layers. For generate_until
//            tasks both are of that text: nothing is counted during generation
//   source   [{"source": name, "total", "layers"}]: token counts; each layer also has
//            "tokens_per_expert", the rows of each expert. A source is the string "source" of a
//            record (quiz, requests, JSON texts), else its file: as given, or relative to --data
//   source_information  [{"layer", "bits", "bits_by_chance"}]: the mutual information between the
//            expert and the source of a row, a measure of specialisation by domain; and its
//            expectation without specialisation, (E - 1) (S - 1) / (2 N ln 2), the mean over N
//            independent rows of S sources
//   token    [{"id", "piece", "count", "experts_per_token", "complete_word_share"}] by id, of those
//            that occur: experts per token = rows / (count x MoE layers), complete_word_share =
//            share of the occurrences as a complete word (PieceShape; 0 for pieces that do not
//            begin a word)
//
// --stats-by selects task, source and token. Token counts are the counters of single tokens: not
// slots, padding, load, bytes and entropy. A token is an input of a forward pass: the last token of
// context + continuation is none, and the context counts once per choice.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/eval/scoring/score.h"

namespace moe::eval {

// Values of --stats-by; layers are always included.
struct StatsBy {
  bool task = false, source = false, token = false;
  bool any() const { return task || source || token; }
};
// Throws UserError for a word that is not layer, source, task or token.
StatsBy parse_stats_by(const std::vector<std::string>& words);

struct TaskRouting {
  std::string task;
  std::vector<route::CounterValues> layers;
  TokenCounts gold;  // empty unless tokens were counted
};

struct RoutingStats {
  std::string model, router;  // the folder; canonical form
  int64_t ep_ranks = 1, experts = 0;
  std::optional<int64_t> k;  // requests per token; top-k only
  bool has_fr = false;       // a (k+1)-th request of every token
  int64_t group_tokens = 0;  // 0: no capacity
  int64_t row_bytes = 0;     // D x bytes of a number
  int64_t forwards = 0;
  StatsBy by;
  std::vector<int64_t> moe_layers;           // numbers of the MoE layers
  std::vector<route::CounterValues> layers;  // one each, over all forward passes
  std::vector<TaskRouting> tasks;
  TokenStats tokens;

  void add(const Scores& scores);
};

OrderedJson stats_json(const RoutingStats& stats);

// Throws UserError if `file` is not writable, is a folder, or exists without `force`.
void check_stats_file(const std::filesystem::path& file, bool force);
// Writes the file as a whole (io::write_whole()).
void write_stats(const RoutingStats& stats, const std::filesystem::path& file);

}  // namespace moe::eval
