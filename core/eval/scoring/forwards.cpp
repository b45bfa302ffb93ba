#include "core/eval/scoring/forwards.h"

#include <cstring>

#include "core/base/error.h"

namespace moe::eval {

namespace {

using at::Tensor;
using route::CounterValues;

OrderedJson counters_json(const CounterValues& counters) {
  OrderedJson json;
  for (const auto& [name, value] : route::counter_fields()) {
    json[name] = counters.*value;
  }
  json["entropy_sum"] = counters.entropy_sum;
  json["load"] = counters.tokens_per_expert;
  json["rank_dropped"] = counters.rank_dropped;
  json["rank_ir"] = counters.rank_ir;
  return json;
}

// Throws Json::exception for JSON of another form.
CounterValues parse_counters(const Json& json) {
  CounterValues counters;
  for (const auto& [name, value] : route::counter_fields()) {
    counters.*value = json.at(name).get<int64_t>();
  }
  counters.entropy_sum = json.at("entropy_sum").get<double>();
  counters.tokens_per_expert = json.at("load").get<std::vector<int64_t>>();
  counters.rank_dropped = json.at("rank_dropped").get<std::vector<int64_t>>();
  counters.rank_ir = json.at("rank_ir").get<std::vector<int64_t>>();
  return counters;
}

// Returns the bytes of the number of columns (3 + E) and of [L, T, 3 + E] i64; "" if tokens are not
// counted.
std::string serialize(const std::vector<Tensor>& token_rows) {
  if (token_rows.empty()) {
    return "";
  }
  const Tensor rows = at::stack(token_rows).cpu().contiguous();
  const int64_t columns = rows.size(2);
  std::string bytes(reinterpret_cast<const char*>(&columns), sizeof columns);
  return bytes.append(static_cast<const char*>(rows.const_data_ptr()), rows.nbytes());
}

// Inverse of serialize().
std::vector<Tensor> parse_token_rows(const std::string& bytes, int64_t layers) {
  if (bytes.empty()) {
    return {};
  }
  int64_t columns = 0;
  MOE_CHECK(bytes.size() > sizeof columns);
  std::memcpy(&columns, bytes.data(), sizeof columns);
  const auto numbers = static_cast<int64_t>(bytes.size() / sizeof(int64_t)) - 1;
  const Tensor rows = at::empty({layers, numbers / (columns * layers), columns}, at::kLong);
  MOE_CHECK(rows.nbytes() + sizeof columns == bytes.size(), "{} bytes of {} layers", bytes.size(),
            layers);
  std::memcpy(rows.data_ptr(), bytes.data() + sizeof columns, rows.nbytes());
  return rows.unbind(0);
}

}  // namespace

OrderedJson to_json(const ForwardScores& forward) {
  OrderedJson scores = OrderedJson::array(), counters = OrderedJson::array();
  for (const auto& score : forward.scores) {
    scores.push_back(OrderedJson::array({score.logprob, score.is_greedy, score.tokens}));
  }
  for (const auto& layer : forward.counters) {
    counters.push_back(counters_json(layer));
  }
  return {{"scores", std::move(scores)}, {"counters", std::move(counters)}};
}

ForwardScores parse_forward_scores(const Json& json) {
  ForwardScores forward;
  for (const auto& score : json.at("scores")) {
    forward.scores.push_back(
        {score.at(0).get<double>(), score.at(1).get<bool>(), score.at(2).get<int64_t>()});
  }
  for (const auto& layer : json.at("counters")) {
    forward.counters.push_back(parse_counters(layer));
  }
  return forward;
}

std::vector<ForwardOutput> gather_forwards(distributed::Comm* ranks,
                                           const std::optional<ForwardOutput>& own) {
  if (ranks == nullptr || ranks->size() == 1) {
    return {own.value()};
  }
  const auto texts = distributed::gather_texts(*ranks, own ? to_json(own->scores).dump() : "");
  const auto rows = distributed::gather_texts(*ranks, own ? serialize(own->token_rows) : "");
  std::vector<ForwardOutput> all;
  for (size_t rank = 0; rank < texts.size() && !texts[rank].empty(); ++rank) {
    ForwardScores scores = parse_forward_scores(parse_json(texts[rank], "scores of another rank"));
    const auto layers = static_cast<int64_t>(scores.counters.size());
    all.push_back({std::move(scores), parse_token_rows(rows[rank], layers)});
  }
  return all;
}

std::vector<std::string> gather_generated(distributed::Comm* ranks,
                                          const std::optional<std::string>& own) {
  if (ranks == nullptr) {
    return {own.value()};
  }
  std::vector<std::string> all;
  // "+" distinguishes an empty answer from no answer.
  for (const auto& text : distributed::gather_texts(*ranks, own ? "+" + *own : "")) {
    if (!text.empty()) {
      all.push_back(text.substr(1));
    }
  }
  return all;
}

}  // namespace moe::eval
