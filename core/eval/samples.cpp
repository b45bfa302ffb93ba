// samples_TASK.jsonl: an object a question, with the keys, the order and the hashes of
// lm-evaluation-harness' sample log (its numbers in resps are strings). The hashes are over
// Python's json.dumps(doc, indent=2, ensure_ascii=False), which dump(2) equals for documents
// without floats.
#include "core/base/error.h"
#include "core/base/sha256.h"
#include "core/eval/report.h"

namespace moe::eval {
namespace {

OrderedJson sample_json(const TaskReport& report, size_t index) {
  const Question& question = report.loaded.questions[index];
  OrderedJson arguments, responses = OrderedJson::array(), filtered = OrderedJson::array();
  for (size_t i = 0; i < question.choices.size(); ++i) {
    const Score& score = report.scores[index][i];
    arguments[fmt::format("gen_args_{}", i)] = {{"arg_0", question.context},
                                                {"arg_1", kChoiceDelimiter + question.choices[i]}};
    const OrderedJson response = {fmt::format("{}", score.logprob),
                                  score.is_greedy ? "True" : "False"};
    responses.push_back(OrderedJson::array({response}));
    filtered.push_back(response);
  }
  const std::string target = fmt::format("{}", question.gold);
  OrderedJson sample = {{"doc_id", index},
                        {"doc", question.fields},
                        {"target", target},
                        {"arguments", std::move(arguments)},
                        {"resps", std::move(responses)},
                        {"filtered_resps", std::move(filtered)},
                        {"filter", "none"},
                        {"metrics", report.loaded.task.metrics},
                        {"doc_hash", sha256_hex(question.fields.dump(2))},
                        {"prompt_hash", sha256_hex(question.context)},
                        {"target_hash", sha256_hex(target)}};
  const auto values = question_metrics(question, report.scores[index]);
  for (const auto& metric : report.loaded.task.metrics) {
    sample[metric] = values.at(metric);
  }
  return sample;
}

}  // namespace

std::string samples_jsonl(const TaskReport& report) {
  std::string lines;
  for (size_t index = 0; index < report.loaded.questions.size(); ++index) {
    lines += sample_json(report, index).dump() + "\n";
  }
  return lines;
}

}  // namespace moe::eval
