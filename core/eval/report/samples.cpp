// samples_TASK.jsonl: an object a question, with the keys, the order and the hashes of
// lm-evaluation-harness' sample log (its numbers in resps are strings). The hashes are over
// Python's json.dumps(doc, indent=2, ensure_ascii=False), which dump(2) equals for documents
// without floats. Where answers are filtered in several ways, the questions come once a filter.
#include <algorithm>

#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/eval/report/report.h"

namespace moe::eval {
namespace {

struct Exchange {
  OrderedJson arguments, responses, filtered;
};

Exchange scored_exchange(const TaskReport& report, size_t index) {
  const Question& question = report.loaded.questions[index];
  Exchange exchange{OrderedJson::object(), OrderedJson::array(), OrderedJson::array()};
  for (size_t i = 0; i < question.choices.size(); ++i) {
    const Score& score = report.scores[index][i];
    exchange.arguments[fmt::format("gen_args_{}", i)] = {{"arg_0", question.context_of(i)},
                                                         {"arg_1", question.continuation_of(i)}};
    const OrderedJson response = {fmt::format("{}", score.logprob),
                                  score.is_greedy ? "True" : "False"};
    exchange.responses.push_back(OrderedJson::array({response}));
    exchange.filtered.push_back(response);
  }
  return exchange;
}

Exchange generated_exchange(const TaskReport& report, size_t index, const std::string& filter) {
  const Question& question = report.loaded.questions[index];
  const OrderedJson settings = {
      {"until", report.loaded.task.generation.until}, {"do_sample", false}, {"temperature", 0.0}};
  Exchange exchange;
  exchange.arguments["gen_args_0"] = {{"arg_0", question.context}, {"arg_1", settings}};
  exchange.responses = OrderedJson::array({OrderedJson::array({report.answers[index]})});
  exchange.filtered =
      OrderedJson::array({filtered_answer(report.loaded, filter, index, report.answers[index])});
  return exchange;
}

OrderedJson value_json(const TaskReport& report, const Metric& metric, size_t index) {
  const double value = report.values.at(metric.key())[index];
  if (metric.aggregation == Aggregation::kBinaryF1 || metric.aggregation == Aggregation::kMacroF1) {
    return OrderedJson::array({report.loaded.questions[index].gold, static_cast<int64_t>(value)});
  }
  return value;
}

OrderedJson sample_json(const TaskReport& report, size_t index, const std::string& filter) {
  const Question& question = report.loaded.questions[index];
  Exchange exchange = report.answers.empty() ? scored_exchange(report, index)
                                             : generated_exchange(report, index, filter);
  OrderedJson sample = {{"doc_id", index},
                        {"doc", question.fields},
                        {"target", question.target},
                        {"arguments", std::move(exchange.arguments)},
                        {"resps", std::move(exchange.responses)},
                        {"filtered_resps", std::move(exchange.filtered)},
                        {"filter", filter},
                        {"metrics", OrderedJson::array()},
                        {"doc_hash", sha256_hex(question.fields.dump(2))},
                        {"prompt_hash", sha256_hex(question.context)},
                        {"target_hash", sha256_hex(question.target)}};
  for (const auto& metric : report.loaded.task.metrics) {
    if (metric.filter == filter) {
      sample["metrics"].push_back(metric.name);
      sample[metric.name] = value_json(report, metric, index);
    }
  }
  return sample;
}

}  // namespace

std::string samples_jsonl(const TaskReport& report) {
  std::vector<std::string> filters;
  for (const auto& metric : report.loaded.task.metrics) {
    if (std::find(filters.begin(), filters.end(), metric.filter) == filters.end()) {
      filters.push_back(metric.filter);
    }
  }
  std::string lines;
  for (const auto& filter : filters) {
    for (size_t index = 0; index < report.loaded.questions.size(); ++index) {
      lines += sample_json(report, index, filter).dump() + "\n";
    }
  }
  return lines;
}

}  // namespace moe::eval
