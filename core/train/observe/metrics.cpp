#include "core/train/observe/metrics.h"

#include "core/base/error.h"
#include "core/route/counters_json.h"

namespace moe::train {

namespace {

// Cuts the file after the line of step `steps`. A line that was not finished, or is none of ours,
// ends it too.
void cut_after(const std::filesystem::path& file, int64_t steps) {
  std::ifstream in(file, std::ios::binary);
  uintmax_t kept = 0;
  int64_t next = 1;
  for (std::string line; next <= steps && std::getline(in, line) && !in.eof();) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const Json step = json.is_object() ? json.value("step", Json()) : Json();
    const bool is_before_first = kept == 0 && step == 0;
    if (!is_before_first && step != next) {
      break;
    }
    kept += line.size() + 1;
    next += is_before_first ? 0 : 1;
  }
  in.close();
  if (std::filesystem::exists(file)) {
    std::filesystem::resize_file(file, kept);
  }
}

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
  if (record.card_memory) {
    json["peak_card_bytes"] = *record.card_memory;
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
  put(json, "auxiliary_loss", record.auxiliary);
  put(json, "lambda", record.lambda);
  if (record.layer_counters.empty()) {
    return json;
  }
  json.update(route::to_json(record.total(), record.row_bytes));
  put(json, "sparsity", record.sparsity);  // SPEC section 9 averages over layers, not over rows
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

MetricsFile::MetricsFile(const std::filesystem::path& file, int64_t steps) : file_(file) {
  cut_after(file, steps);
  out_.open(file, std::ios::binary | std::ios::app);
  if (!out_) {
    throw UserError("{}: cannot be written; check the folder's permissions", file.string());
  }
}

void MetricsFile::append(const OrderedJson& line) {
  out_ << line.dump() << '\n' << std::flush;
  if (!out_) {
    throw UserError("{}: cannot be written any more; is the disk full?", file_.string());
  }
}

}  // namespace moe::train
