#include "core/eval/scoring/forwards.h"

namespace moe::eval {
namespace {

using route::CounterValues;

struct CountName {
  const char* name;
  int64_t CounterValues::*value;
};

const std::vector<CountName>& count_names() {
  static const std::vector<CountName> names = {
      {"tokens", &CounterValues::tokens},
      {"requests", &CounterValues::requests},
      {"dropped_requests", &CounterValues::dropped_requests},
      {"dropped_tokens", &CounterValues::dropped_tokens},
      {"unserved_tokens", &CounterValues::unserved_tokens},
      {"fr_requests", &CounterValues::fr_requests},
      {"fr_filled", &CounterValues::fr_filled},
      {"fr_rejected", &CounterValues::fr_rejected},
      {"ir_tokens", &CounterValues::ir_tokens},
      {"slots_total", &CounterValues::slots_total},
      {"slots_used", &CounterValues::slots_used},
      {"padding", &CounterValues::padding},
      {"rows_sent", &CounterValues::rows_sent},
  };
  return names;
}

OrderedJson counters_json(const CounterValues& counters) {
  OrderedJson json;
  for (const auto& [name, value] : count_names()) {
    json[name] = counters.*value;
  }
  json["entropy_sum"] = counters.entropy_sum;
  json["load"] = counters.tokens_per_expert;
  json["rank_dropped"] = counters.rank_dropped;
  json["rank_ir"] = counters.rank_ir;
  return json;
}

// The JSON may be anything: throws Json::exception where it is not what we write.
CounterValues counters_from(const Json& json) {
  CounterValues counters;
  for (const auto& [name, value] : count_names()) {
    counters.*value = json.at(name).get<int64_t>();
  }
  counters.entropy_sum = json.at("entropy_sum").get<double>();
  counters.tokens_per_expert = json.at("load").get<std::vector<int64_t>>();
  counters.rank_dropped = json.at("rank_dropped").get<std::vector<int64_t>>();
  counters.rank_ir = json.at("rank_ir").get<std::vector<int64_t>>();
  return counters;
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

ForwardScores forward_scores_from(const Json& json) {
  ForwardScores forward;
  for (const auto& score : json.at("scores")) {
    forward.scores.push_back(
        {score.at(0).get<double>(), score.at(1).get<bool>(), score.at(2).get<int64_t>()});
  }
  for (const auto& layer : json.at("counters")) {
    forward.counters.push_back(counters_from(layer));
  }
  return forward;
}

}  // namespace moe::eval
