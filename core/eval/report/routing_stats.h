#pragma once
// The statistics file of `moe eval --stats FILE`: one JSON object.
//
//   version, model, router, ep_ranks, experts, k (null for routers without k), group_tokens (tokens
//            of a routing group over all ranks; null: no capacity), row_bytes, forwards
//   total    counters over all MoE layers and forward passes (core/route/counters.h)
//   layers   [{"layer": number, counters}]
//   task     [{"task": name, "total", "layers", "gold"}] in the order of --tasks. "total" and
//            "layers": counters over all choices. "gold": {"total", "layers"}, token counts over
//            context + right answer only (Dynamic MoE, Table 3). Generation is not counted; for
//            generate_until tasks "total", "layers" and "gold" are over context + right answer
//   source   [{"source": name, "total", "layers"}]: token counts; each layer also has
//            "tokens_per_expert", the rows of each expert. A source is the string "source" of a
//            record (quiz, requests, JSON texts), or else the file of the record: its path as
//            given, or relative to --data
//   source_information  [{"layer", "bits", "bits_by_chance"}]: "bits" is the mutual information of
//            a row's expert and source, a measure of specialisation by domain. "bits_by_chance" is
//            its expectation without specialisation, for N independent rows of S sources:
//            (E - 1) (S - 1) / (2 N ln 2)
//   token    [{"id", "piece", "count", "experts_per_token", "complete_word_share"}] by id, for ids
//            with count > 0. experts_per_token = rows / (count x MoE layers). complete_word_share:
//            share of the occurrences that are complete words (PieceShape)
//
// --stats-by selects "task", "source" and "token". Token counts are all counters but slots,
// padding, load, bytes and entropy, over the input tokens (all but the last) of every choice.

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
// Parses --stats-by. Throws UserError if a word is not layer, source, task or token.
StatsBy parse_stats_by(const std::vector<std::string>& words);

struct TaskRouting {
  std::string task;
  std::vector<route::CounterValues> layers;
  TokenCounts gold;  // empty unless tokens were counted
};

struct RoutingStats {
  std::string model, router;  // path of the folder; canonical form of the router
  int64_t ep_ranks = 1, experts = 0;
  std::optional<int64_t> k;  // requests per token; top-k only
  bool has_fr = false;       // every token has a (k+1)-th request for fill-in (+fr)
  int64_t group_tokens = 0;  // 0: no capacity
  int64_t row_bytes = 0;     // bytes of a hidden state [D]
  int64_t forwards = 0;
  StatsBy by;
  std::vector<int64_t> moe_layers;           // numbers of the MoE layers
  std::vector<route::CounterValues> layers;  // one per MoE layer, over all forward passes
  std::vector<TaskRouting> tasks;
  TokenStats tokens;

  void add(const Scores& scores);
};

OrderedJson stats_json(const RoutingStats& stats);

// Throws UserError if `file` is not writable, is a folder, or exists and `force` is false.
void check_stats_file(const std::filesystem::path& file, bool force);
void write_stats(const RoutingStats& stats, const std::filesystem::path& file);

}  // namespace moe::eval
