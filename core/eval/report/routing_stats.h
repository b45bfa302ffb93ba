#pragma once
// The statistics file of `moe eval --stats FILE`: one JSON object.
//
//   version, model, router, ep_ranks, experts, k (null without one), group_tokens (tokens routed
//   together, all ranks; null = no capacity), row_bytes, forwards
//   total    counters over all MoE layers and forwards (core/route/counters_json.h)
//   layers   [{"layer": number, counters}]
//   task     [{"task": name, "total", "layers", "gold"}] in the order of --tasks; counters of all
//            choices, and in gold the token counts of context + right answer alone (Dynamic MoE,
//            Table 3: question + gold answer as one text), total and layers. Of a task whose
//            answers are generated both are of that text: while a model generates nothing is
//            counted
//   source   [{"source": name, "total", "layers"}]: token counts, in layers with
//   "tokens_per_expert": rows
//            of each expert. A source is the string "source" of a record (quiz, requests, JSON
//            texts), else its file: as given, or under --data
//   source_information  [{"layer", "bits", "bits_by_chance"}]: the mutual information between the
//            expert and the source of a row, which says how far experts specialise by domain, and
//            what it would be if they did not: (E - 1) (S - 1) / (2 N ln 2), its mean over N
//            independent rows of S sources
//   token    [{"id", "piece", "count", "experts_per_token", "complete_word_share"}] by id, of those
//            that occur: experts per token = rows / (count x MoE layers), complete_word_share =
//            share of the occurrences where the piece stands as a complete word (token_tally.h; 0
//            for pieces that do not begin one)
//
// task, source and token only when --stats-by names them. Token counts are the counters that belong
// to a token: slots, padding, load, bytes and entropy do not. A token is an input of a forward: the
// last of context + continuation is none, and the context is run once a choice.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/eval/scoring/token_tally.h"

namespace moe::eval {

// --stats-by; layers always.
struct StatsBy {
  bool task = false, source = false, token = false;
  bool any() const { return task || source || token; }
};
// UserError: a word that is not layer, source, task or token.
StatsBy parse_stats_by(const std::vector<std::string>& words);

struct TaskRouting {
  std::string task;
  std::vector<route::CounterValues> layers;
  std::vector<TokenCounts> gold;  // one a layer; empty unless tokens were counted
};

struct RoutingStats {
  std::string model, router;  // the folder; canonical form
  int64_t ep_ranks = 1, experts = 0;
  std::optional<int64_t> k;  // requests of a token; top-k only
  bool has_fr = false;       // a (k+1)-th request of every token
  int64_t group_tokens = 0;  // 0 = no capacity
  int64_t row_bytes = 0;     // D x bytes of a number
  int64_t forwards = 0;
  StatsBy by;
  std::vector<int64_t> moe_layers;           // numbers of the MoE layers
  std::vector<route::CounterValues> layers;  // one each, over all forwards
  std::vector<TaskRouting> tasks;
  TokenStats tokens;

  void add(const Scores& scores);
};

OrderedJson stats_json(const RoutingStats& stats);

// UserError when `file` may not be written, is a folder, or is there and not `force`.
void check_stats_file(const std::filesystem::path& file, bool force);
// It appears whole or not at all.
void write_stats(const RoutingStats& stats, const std::filesystem::path& file);

}  // namespace moe::eval
