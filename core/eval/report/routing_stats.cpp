#include "core/eval/report/routing_stats.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numbers>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/version.h"
#include "core/io/file.h"
#include "core/io/output_checks.h"

namespace moe::eval {
namespace {

OrderedJson token_counts_json(const route::CounterValues& counts, const RoutingStats& stats) {
  const int64_t accepted = counts.rows() - counts.fr_filled - counts.ir_tokens;
  const int64_t requests = stats.k ? *stats.k * counts.tokens : accepted;
  const int64_t fr_requests = stats.has_fr ? counts.tokens : 0;
  const int64_t dropped = requests - accepted;
  const int64_t rejected = fr_requests - counts.fr_filled;
  const double experts_per_token = counts.experts_per_token();
  return {{"tokens", counts.tokens},
          {"requests", requests},
          {"dropped_requests", dropped},
          {"dropped_tokens", counts.dropped_tokens},
          {"unserved_tokens", counts.unserved_tokens},
          {"fr_requests", fr_requests},
          {"fr_filled", counts.fr_filled},
          {"fr_rejected", rejected},
          {"ir_tokens", counts.ir_tokens},
          {"rows", counts.rows()},
          {"dropped_share", route::ratio(dropped, requests)},
          {"filled_share", route::ratio(counts.fr_filled, fr_requests)},
          {"ir_share", route::ratio(counts.ir_tokens, counts.tokens)},
          {"unserved_share", route::ratio(counts.unserved_tokens, counts.tokens)},
          {"unsuccessful_share", route::ratio(dropped + rejected, requests + fr_requests)},
          {"experts_per_token", experts_per_token},
          {"sparsity", 1 - experts_per_token / stats.experts}};
}

// Returns {"total", "layers"}. "tokens" of the total counts each token once, not once per layer.
OrderedJson token_layers_json(const TokenCounts& layers, const RoutingStats& stats) {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    OrderedJson layer = {{"layer", stats.moe_layers.at(i)}};
    layer.update(token_counts_json(layers[i], stats));
    layer["tokens_per_expert"] = layers[i].tokens_per_expert;
    list.push_back(std::move(layer));
  }
  OrderedJson total = token_counts_json(route::sum_layers(layers).sum, stats);
  total["tokens"] = layers.empty() ? 0 : layers[0].tokens;
  return {{"total", std::move(total)}, {"layers", std::move(list)}};
}

void put_counters(OrderedJson& json, const std::vector<route::CounterValues>& layers,
                  const RoutingStats& stats) {
  json["total"] = route::to_json(route::sum_layers(layers), stats.row_bytes);
  json["layers"] = route::layers_json(stats.moe_layers, layers, stats.row_bytes);
}

OrderedJson tasks_json(const RoutingStats& stats) {
  OrderedJson list = OrderedJson::array();
  for (const auto& task : stats.tasks) {
    OrderedJson entry = {{"task", task.task}};
    put_counters(entry, task.layers, stats);
    entry["gold"] = token_layers_json(task.gold, stats);
    list.push_back(std::move(entry));
  }
  return list;
}

OrderedJson sources_json(const RoutingStats& stats) {
  OrderedJson list = OrderedJson::array();
  for (const auto& source : stats.tokens.sources) {
    OrderedJson entry = {{"source", source.name}};
    entry.update(token_layers_json(source.layers, stats));
    list.push_back(std::move(entry));
  }
  return list;
}

OrderedJson source_information_json(const RoutingStats& stats) {
  OrderedJson list = OrderedJson::array();
  const auto& sources = stats.tokens.sources;
  for (size_t layer = 0; layer < stats.moe_layers.size(); ++layer) {
    at::Tensor rows = at::zeros({std::ssize(sources), stats.experts}, at::kDouble);
    for (int64_t source = 0; source < rows.size(0); ++source) {
      const auto& counts = sources[static_cast<size_t>(source)].layers.at(layer).tokens_per_expert;
      if (!counts.empty()) {
        rows[source].copy_(at::tensor(counts));
      }
    }
    // Mutual information of source and expert. Entries without rows are NaN or 0.
    const at::Tensor all = rows.sum(), expected = rows.sum(1, true) * rows.sum(0, true) / all;
    const double nats = at::xlogy(rows / all, rows / expected).nansum().item<double>();
    const auto count = all.item<double>();
    const double degrees_of_freedom = (stats.experts - 1) * (std::ssize(sources) - 1);
    list.push_back({{"layer", stats.moe_layers[layer]},
                    {"bits", nats / std::numbers::ln2},
                    {"bits_by_chance",
                     count == 0 ? 0.0 : degrees_of_freedom / (2 * count * std::numbers::ln2)}});
  }
  return list;
}

OrderedJson vocabulary_json(const RoutingStats& stats) {
  OrderedJson list = OrderedJson::array();
  const auto layers = std::ssize(stats.moe_layers);
  for (const auto& entry : stats.tokens.vocabulary) {
    list.push_back({{"id", entry.id},
                    {"piece", entry.piece},
                    {"count", entry.count},
                    {"experts_per_token", route::ratio(entry.rows, entry.count * layers)},
                    {"complete_word_share", route::ratio(entry.complete, entry.count)}});
  }
  return list;
}

}  // namespace

StatsBy parse_stats_by(const std::vector<std::string>& words) {
  const std::vector<std::string> known = {"layer", "source", "task", "token"};
  const auto has = [&](const char* word) { return std::ranges::find(words, word) != words.end(); };
  for (const auto& word : words) {
    USER_ERROR_IF(std::ranges::find(known, word) == known.end(),
                  "--stats-by '{}' is unknown{}; known: {}", printable(word),
                  did_you_mean(word, known), fmt::join(known, ", "));
  }
  return {has("task"), has("source"), has("token")};
}

void RoutingStats::add(const Scores& scores) {
  forwards += scores.forwards;
  layers.resize(moe_layers.size());
  for (size_t i = 0; i < scores.counters.size(); ++i) {
    layers.at(i).add(scores.counters[i]);
  }
}

OrderedJson stats_json(const RoutingStats& stats) {
  OrderedJson json = {
      {"version", kVersion},
      {"model", stats.model},
      {"router", stats.router},
      {"ep_ranks", stats.ep_ranks},
      {"experts", stats.experts},
      {"k", stats.k ? OrderedJson(*stats.k) : OrderedJson()},
      {"group_tokens", stats.group_tokens > 0 ? OrderedJson(stats.group_tokens) : OrderedJson()},
      {"row_bytes", stats.row_bytes},
      {"forwards", stats.forwards}};
  put_counters(json, stats.layers, stats);
  if (stats.by.task) {
    json["task"] = tasks_json(stats);
  }
  if (stats.by.source) {
    json["source"] = sources_json(stats);
    json["source_information"] = source_information_json(stats);
  }
  if (stats.by.token) {
    json["token"] = vocabulary_json(stats);
  }
  return json;
}

void check_stats_file(const std::filesystem::path& file, bool force) {
  USER_ERROR_IF(std::filesystem::is_directory(file), "--stats {}: is a folder; give a file",
                file.string());
  io::check_output({file}, force, "--stats");
}

void write_stats(const RoutingStats& stats, const std::filesystem::path& file) {
  const auto folder = file.parent_path();
  std::error_code failure;
  if (!folder.empty()) {
    std::filesystem::create_directories(folder, failure);
  }
  USER_ERROR_IF(failure, "--stats {}: cannot create its folder: {}", file.string(),
                failure.message());
  io::write_whole(file, stats_json(stats).dump(2) + "\n");
}

}  // namespace moe::eval
