#include "core/train/metrics.h"

#include <algorithm>

#include "core/base/error.h"

namespace moe::train {

namespace {

// Cuts the file after the line of step `steps`. A line that was not finished, or is none of ours,
// ends it too.
void cut_after(const std::filesystem::path& file, int64_t steps) {
  std::ifstream in(file, std::ios::binary);
  uintmax_t kept = 0;
  int64_t next = 1;
  for (std::string line; next <= steps && std::getline(in, line) && !in.eof(); ++next) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || json.value("step", Json()) != next) {
      break;
    }
    kept += line.size() + 1;
  }
  in.close();
  if (std::filesystem::exists(file)) {
    std::filesystem::resize_file(file, kept);
  }
}

double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

void put(OrderedJson& json, const char* key, const std::optional<double>& value) {
  if (value) {
    json[key] = *value;
  }
}

void put_counters(OrderedJson& json, const route::CounterValues& counters) {
  const auto tokens = static_cast<double>(counters.tokens);
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
  json["dropped_share"] =
      share(static_cast<double>(counters.dropped_requests), static_cast<double>(counters.requests));
  json["filled_share"] =
      share(static_cast<double>(counters.fr_filled), static_cast<double>(counters.fr_requests));
  json["ir_share"] = share(static_cast<double>(counters.ir_tokens), tokens);
  json["entropy"] = share(counters.entropy_sum, tokens);
  json["experts_per_token"] = counters.experts_per_token();
  json["sparsity"] = counters.sparsity();
  json["load_max_over_mean"] = counters.load_max_over_mean();
  json["dead_experts"] = counters.dead_experts();
  json["load"] = counters.load;
}

}  // namespace

route::CounterValues StepRecord::total() const {
  route::CounterValues sum;
  for (const auto& counters : layer_counters) {
    sum.add(counters);
  }
  return sum;
}

double StepRecord::worst_load() const {
  double worst = 0;
  for (const auto& counters : layer_counters) {
    worst = std::max(worst, counters.load_max_over_mean());
  }
  return worst;
}

int64_t StepRecord::dead_experts() const {
  int64_t dead = 0;
  for (const auto& counters : layer_counters) {
    dead += counters.dead_experts();
  }
  return dead;
}

OrderedJson to_json(const route::CounterValues& counters) {
  OrderedJson json = OrderedJson::object();
  put_counters(json, counters);
  return json;
}

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
  json["skipped_steps"] = record.skipped_steps;
  put(json, "load_balance_loss", record.load_balance_loss);
  put(json, "entropy_loss", record.entropy_loss);
  put(json, "l1_loss", record.l1_loss);
  put(json, "auxiliary_loss", record.auxiliary);
  put(json, "lambda", record.lambda);
  if (record.layer_counters.empty()) {
    return json;
  }
  put_counters(json, record.total());
  json["load_max_over_mean"] = record.worst_load();
  json["dead_experts"] = record.dead_experts();
  json.erase("load");  // expert 0 of one layer has nothing to do with expert 0 of another
  put(json, "sparsity", record.sparsity);  // SPEC section 9 averages over layers, not over rows
  OrderedJson layers = OrderedJson::array();
  for (size_t i = 0; i < record.layer_counters.size(); ++i) {
    OrderedJson layer = {{"layer", record.moe_layers[i]}};
    put_counters(layer, record.layer_counters[i]);
    layers.push_back(std::move(layer));
  }
  json["layers"] = std::move(layers);
  return json;
}

MetricsFile::MetricsFile(const std::filesystem::path& file, int64_t steps) : file_(file) {
  cut_after(file, steps);
  out_.open(file, std::ios::binary | std::ios::app);
  if (!out_) {
    throw UserError("{}: cannot be written; check the folder's permissions", file.string());
  }
}

void MetricsFile::append(const StepRecord& record) {
  out_ << to_json(record).dump() << '\n' << std::flush;
  if (!out_) {
    throw UserError("{}: cannot be written any more; is the disk full?", file_.string());
  }
}

}  // namespace moe::train
