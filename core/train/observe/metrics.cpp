#include "core/train/observe/metrics.h"

#include "core/route/counters_json.h"

namespace moe::train {

namespace {

void put(OrderedJson& json, const char* key, const std::optional<double>& value) {
  if (value) {
    json[key] = *value;
  }
}

}  // namespace

route::CounterTotal StepRecord::total() const { return route::total_of(layer_counters); }

OrderedJson to_json(const StepRecord& record) {
  OrderedJson json = OrderedJson::object();
  json["step"] = record.step;
  json["loss"] = record.loss;
  json["grad_norm"] = record.grad_norm;
  json["lr"] = record.lr;
  json["tokens"] = record.tokens;
  json["target_tokens"] = record.target_tokens;
  json["total_tokens"] = record.total_tokens;
  json["tokens_per_second"] = record.tokens_per_second;
  json["seconds"] = record.seconds;
  json["peak_memory_bytes"] = record.peak_memory;
  if (record.gpu_memory) {
    json["peak_gpu_bytes"] = *record.gpu_memory;
  }
  json["data_wait_seconds"] = record.data_wait_seconds;
  json["skipped_steps"] = record.skipped_steps;
  if (record.skipped) {
    json["skipped"] = record.skipped_kind;
    json["skipped_why"] = record.skipped_why;
  }
  if (record.skipped_outliers) {
    json["skipped_outliers"] = *record.skipped_outliers;
  }
  put(json, "load_balance_loss", record.load_balance_loss);
  put(json, "entropy_loss", record.entropy_loss);
  put(json, "l1_loss", record.l1_loss);
  put(json, "z_loss", record.z_loss);
  put(json, "sequence_balance_loss", record.sequence_balance_loss);
  put(json, "auxiliary_loss", record.auxiliary);
  put(json, "lambda", record.lambda);
  put(json, "bias_max", record.bias_max);
  if (record.layer_counters.empty()) {
    return json;
  }
  json.update(route::to_json(record.total(), record.row_bytes));
  put(json, "sparsity", record.sparsity);  // the mean over layers, not over rows
  put(json, "target_sparsity", record.target_sparsity);
  json["layers"] = route::layers_json(record.moe_layers, record.layer_counters, record.row_bytes);
  return json;
}

void add_evaluation(OrderedJson& line, const Evaluation& evaluation) {
  put(line, "held_out_loss", evaluation.held_out_loss);
  if (!evaluation.tasks.empty()) {
    line["tasks"] = evaluation.tasks;
  }
  line["evaluation_seconds"] = evaluation.seconds;
}

}  // namespace moe::train
