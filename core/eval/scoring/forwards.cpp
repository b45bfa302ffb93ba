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

// Returns the bytes of the three sizes and the elements of token_rows; "" if it is undefined.
std::string serialize(const Tensor& token_rows) {
  if (!token_rows.defined()) {
    return "";
  }
  const Tensor numbers = at::cat({at::tensor(token_rows.sizes()), token_rows.flatten()});
  return {static_cast<const char*>(numbers.const_data_ptr()), numbers.nbytes()};
}

// Inverse of serialize().
Tensor parse_token_rows(const std::string& bytes) {
  if (bytes.empty()) {
    return {};
  }
  const Tensor numbers = at::empty({std::ssize(bytes) / 8}, at::kLong);
  std::memcpy(numbers.data_ptr(), bytes.data(), bytes.size());
  const int64_t* sizes = numbers.const_data_ptr<int64_t>();
  return numbers.slice(0, 3).view({sizes[0], sizes[1], sizes[2]});
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
    const Json scores = parse_json(texts[rank], "scores of another rank");
    all.push_back({parse_forward_scores(scores), parse_token_rows(rows[rank])});
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
