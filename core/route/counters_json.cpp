#include "core/route/counters_json.h"

#include "core/base/error.h"

namespace moe::route {
namespace {

double share_of(int64_t part, int64_t whole) {
  return route::share_of(static_cast<double>(part), static_cast<double>(whole));
}

void put_counts(OrderedJson& json, const CounterValues& counters) {
  json["requests"] = counters.requests;
  json["dropped_requests"] = counters.dropped_requests;
  json["dropped_tokens"] = counters.dropped_tokens;
  json["unserved_tokens"] = counters.unserved_tokens;
  json["fr_requests"] = counters.fr_requests;
  json["fr_filled"] = counters.fr_filled;
  json["fr_rejected"] = counters.fr_rejected;
  json["ir_tokens"] = counters.ir_tokens;
  json["slots_total"] = counters.slots_total;
  json["slots_used"] = counters.slots_used;
  json["padding"] = counters.padding;
  json["rows"] = counters.rows();
  json["rows_sent"] = counters.rows_sent;
}

void put_shares(OrderedJson& json, const CounterValues& counters) {
  json["dropped_share"] = share_of(counters.dropped_requests, counters.requests);
  json["filled_share"] = share_of(counters.fr_filled, counters.fr_requests);
  json["ir_share"] = share_of(counters.ir_tokens, counters.tokens);
  json["unserved_share"] = share_of(counters.unserved_tokens, counters.tokens);
  json["padding_share"] = share_of(counters.padding, counters.slots_total);
  json["unsuccessful_share"] = share_of(counters.dropped_requests + counters.fr_rejected,
                                        counters.requests + counters.fr_requests);
  json["entropy"] = route::share_of(counters.entropy_sum, static_cast<double>(counters.tokens));
  json["experts_per_token"] = counters.experts_per_token();
}

void put_ranks(OrderedJson& json, const std::string& name, const std::vector<int64_t>& counts) {
  const RankSpread spread = spread_of(counts);
  json[name + "_per_rank"] = counts;
  json[name + "_rank_max"] = spread.max;
  json[name + "_rank_mean"] = spread.mean;
}

// What a layer and a total have in common.
OrderedJson common(const CounterValues& counters, int64_t row_bytes) {
  OrderedJson json = {{"tokens", counters.tokens}};
  put_counts(json, counters);
  if (row_bytes > 0) {
    json["bytes_sent"] = 2 * counters.rows_sent * row_bytes;
  }
  put_shares(json, counters);
  put_ranks(json, "dropped", counters.rank_dropped);
  put_ranks(json, "ir", counters.rank_ir);
  return json;
}

struct Column {
  std::string head;
  std::string (*cell)(const CounterValues& counters, double load, int64_t dead);
  bool (*is_shown)(const CounterValues& sum);
};

std::string percent(int64_t part, int64_t whole) {
  return fmt::format("{:.2f}", 100 * share_of(part, whole));
}

bool always(const CounterValues&) { return true; }

const std::vector<Column>& columns() {
  using Values = const CounterValues&;
  static const std::vector<Column> all = {
      {"drop %", [](Values c, double, int64_t) { return percent(c.dropped_requests, c.requests); },
       [](Values c) { return c.slots_total > 0; }},
      {"unserved %", [](Values c, double, int64_t) { return percent(c.unserved_tokens, c.tokens); },
       [](Values c) { return c.unserved_tokens > 0; }},
      {"fill %", [](Values c, double, int64_t) { return percent(c.fr_filled, c.fr_requests); },
       [](Values c) { return c.fr_requests > 0; }},
      {"IR %", [](Values c, double, int64_t) { return percent(c.ir_tokens, c.tokens); },
       [](Values c) { return c.ir_tokens > 0; }},
      {"padding %", [](Values c, double, int64_t) { return percent(c.padding, c.slots_total); },
       [](Values c) { return c.slots_total > 0; }},
      {"experts/token",
       [](Values c, double, int64_t) { return fmt::format("{:.3f}", c.experts_per_token()); },
       always},
      {"load max/mean", [](Values, double load, int64_t) { return fmt::format("{:.2f}", load); },
       always},
      {"dead", [](Values, double, int64_t dead) { return fmt::format("{}", dead); }, always},
      {"entropy",
       [](Values c, double, int64_t) {
         return fmt::format("{:.3f}",
                            route::share_of(c.entropy_sum, static_cast<double>(c.tokens)));
       },
       [](Values c) { return c.entropy_sum > 0; }}};
  return all;
}

}  // namespace

double share_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

OrderedJson to_json(const CounterValues& counters, int64_t row_bytes) {
  OrderedJson json = common(counters, row_bytes);
  json["sparsity"] = counters.sparsity();
  json["load_max_over_mean"] = counters.load_max_over_mean();
  json["dead_experts"] = counters.dead_experts();
  json["load"] = counters.tokens_per_expert;
  if (!counters.requests_per_expert.empty()) {
    json["requests_per_expert"] = counters.requests_per_expert;
  }
  return json;
}

OrderedJson to_json(const CounterTotal& total, int64_t row_bytes) {
  OrderedJson json = common(total.sum, row_bytes);
  json["tokens"] = total.tokens;
  json["sparsity"] = total.sparsity;
  json["load_max_over_mean"] = total.worst_load;
  json["dead_experts"] = total.dead_experts;
  return json;
}

OrderedJson layers_json(const std::vector<int64_t>& numbers,
                        const std::vector<CounterValues>& layers, int64_t row_bytes) {
  MOE_CHECK(numbers.size() == layers.size(), "{} and {} layers", numbers.size(), layers.size());
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < layers.size(); ++i) {
    OrderedJson layer = {{"layer", numbers[i]}};
    layer.update(to_json(layers[i], row_bytes));
    list.push_back(std::move(layer));
  }
  return list;
}

std::string routing_table(const std::vector<int64_t>& numbers,
                          const std::vector<CounterValues>& layers) {
  const CounterTotal total = total_of(layers);
  const auto line = [&](const std::string& name, const auto& cell_of) {
    std::string text = fmt::format("{:<5}", name);
    for (const auto& column : columns()) {
      if (column.is_shown(total.sum)) {
        text += fmt::format("  {:>{}}", cell_of(column), std::max<size_t>(6, column.head.size()));
      }
    }
    return text + "\n";
  };
  std::string table = line("layer", [](const Column& column) { return column.head; });
  for (size_t i = 0; i < layers.size(); ++i) {
    table += line(fmt::format("{}", numbers.at(i)), [&](const Column& column) {
      return column.cell(layers[i], layers[i].load_max_over_mean(), layers[i].dead_experts());
    });
  }
  return table + line("all", [&](const Column& column) {
           return column.cell(total.sum, total.worst_load, total.dead_experts);
         });
}

}  // namespace moe::route
