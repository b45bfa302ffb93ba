#include "core/train/observe/metrics.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/read_file.h"
#include "core/io/file.h"
#include "core/train/observe/report.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

void put(OrderedJson& json, const char* key, const std::optional<double>& value) {
  if (value) {
    json[key] = *value;
  }
}

constexpr const char* kHistory = "history.json";

OrderedJson to_json(const LinesMark& mark) { return {{"bytes", mark.bytes}, {"step", mark.step}}; }

LinesMark read_lines_mark(const Json& json, const std::string& where) {
  const int64_t bytes = get_int(json, "bytes", where);
  USER_ERROR_IF(bytes < 0, "{}: 'bytes' is {}, which no file has", where, bytes);
  return {static_cast<uint64_t>(bytes), get_int(json, "step", where)};
}

// Collects the ranges of steps that have no line.
class MissingSteps {
 public:
  void see(int64_t step) {
    add(step - 1);
    next_ = std::max(next_, step + 1);
  }
  // Returns "11 to 20, 31"; "" if no step up to `last` is missing.
  std::string words(int64_t last) {
    add(last);
    next_ = last + 1;
    return fmt::format("{}{}", fmt::join(ranges_, ", "), count_ > kMaxRanges ? " and others" : "");
  }

 private:
  static constexpr int64_t kMaxRanges = 5;

  void add(int64_t last) {
    if (last < next_ || ++count_ > kMaxRanges) {
      return;
    }
    ranges_.push_back(last == next_ ? fmt::format("{}", last)
                                    : fmt::format("{} to {}", next_, last));
  }

  int64_t next_ = 1, count_ = 0;
  std::vector<std::string> ranges_;
};

std::optional<LogState> find_state(const fs::path& checkpoint, std::vector<std::string>& notes) {
  try {
    return checkpoint.empty() ? std::nullopt : read_log_state(checkpoint);
  } catch (const UserError& error) {
    notes.push_back(fmt::format("{}; the history is read from metrics.jsonl", error.what()));
    return std::nullopt;
  }
}

// Adds the ends of both stages to the line of the step that ends the sparsifying stage of a ReLU
// run.
OrderedJson with_stage_ends(OrderedJson line, ReluStages stages) {
  if (line.contains("target_sparsity") &&
      stages.add(line["step"], line["sparsity"], line["target_sparsity"])) {
    line["dense_stage_end"] = stages.dense_end();
    line["sparsifying_stage_end"] = *stages.sparsifying_end();
  }
  return line;
}

constexpr uint64_t kTail = uint64_t{4} << 20;  // larger than a line of thousands of experts

// Returns the value of `key`; null if `json` is not an object or has no such key.
Json member(const Json& json, const char* key) {
  return json.is_object() ? json.value(key, Json()) : Json();
}

std::optional<double> number_member(const Json& json, const char* key) {
  const Json value = member(json, key);
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

std::optional<double> lr_from_checkpoint(const fs::path& model) {
  const auto state = read_log_state(model);
  if (!state) {
    return std::nullopt;
  }
  const Downsampled* curve = state->history.find_curve("lr");
  return curve == nullptr ? std::nullopt : std::optional(curve->last.value);
}

std::optional<double> lr_from_upcycle_report(const fs::path& model) {
  const fs::path file = model / "upcycle.json";
  if (!fs::exists(file)) {
    return std::nullopt;
  }
  const Json report = read_json(file, uint64_t{1} << 24);
  return number_member(member(report, "source"), "last_learning_rate");
}

// Returns the rate of the last complete line of RUN/metrics.jsonl that has one. Reads only the end
// of the file, which may have millions of lines.
std::optional<double> lr_from_metrics(const fs::path& model) {
  const fs::path folder = fs::weakly_canonical(model);
  const fs::path file = folder.parent_path() / "metrics.jsonl";
  if (folder.filename() != "final" || !fs::exists(file)) {
    return std::nullopt;
  }
  FileReader in(file);
  const uint64_t size = fs::file_size(file);
  const bool is_cut = size > kTail;
  in.seek(is_cut ? size - kTail : 0);
  std::optional<double> last;
  std::string line;
  for (bool is_first = true; in.read_whole_line(line); is_first = false) {
    if (is_first && is_cut) {
      continue;  // incomplete
    }
    if (const auto rate = number_member(parse_json(line, file.string()), "lr")) {
      last = rate;
    }
  }
  return last;
}

}  // namespace

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
  put(json, "load_balance_loss", record.load_balance);
  put(json, "entropy_loss", record.entropy);
  put(json, "l1_loss", record.l1);
  put(json, "z_loss", record.z);
  put(json, "sequence_balance_loss", record.sequence_balance);
  put(json, "auxiliary_loss", record.auxiliary);
  put(json, "lambda", record.lambda);
  put(json, "bias_max", record.bias_max);
  if (record.layers.empty()) {
    return json;
  }
  json.update(route::to_json(record.total(), record.row_bytes));
  if (record.target_sparsity) {
    json["sparsity"] = record.sparsity;  // mean over layers, not over rows
    json["target_sparsity"] = *record.target_sparsity;
  }
  json["layers"] = route::layers_json(record.moe_layers, record.layers, record.row_bytes);
  return json;
}

void add_evaluation(OrderedJson& line, const Evaluation& evaluation) {
  put(line, "held_out_loss", evaluation.held_out_loss);
  if (!evaluation.tasks.empty()) {
    line["tasks"] = evaluation.tasks;
  }
  line["evaluation_seconds"] = evaluation.seconds;
}

void write_log_state(const LogState& state, const fs::path& checkpoint) {
  const OrderedJson json = {{"format", 1},
                            {"metrics", to_json(state.metrics)},
                            {"samples", to_json(state.samples)},
                            {"events",
                             {{"bytes", state.events.bytes},
                              {"sum", state.events.sum},
                              {"clock_s", state.events.clock_s}}},
                            {"history", state.history.to_json()}};
  io::write_file(checkpoint / kHistory,
                 json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
}

std::optional<LogState> read_log_state(const fs::path& checkpoint) {
  const std::string where = (checkpoint / kHistory).string();
  std::error_code ignored;
  if (!fs::exists(where, ignored)) {
    return std::nullopt;
  }
  const Json json = read_json(where, uint64_t{1} << 28);
  USER_ERROR_IF(get_int(json, "format", where) != 1, "{}: format {} is of another version of moe",
                where, json["format"].dump());
  LogState state;
  state.metrics = read_lines_mark(json.value("metrics", Json()), where + ": metrics");
  state.samples = read_lines_mark(json.value("samples", Json()), where + ": samples");
  const Json events = json.value("events", Json());
  state.events = {
      read_lines_mark({{"bytes", get_int(events, "bytes", where)}, {"step", 0}}, where).bytes,
      static_cast<uint32_t>(get_int(events, "sum", where)), get_double(events, "clock_s", where)};
  state.history = History::from_json(json.value("history", Json()), where);
  return state;
}

MetricsLog::MetricsLog(const RunFolder& folder, int64_t steps, const fs::path& checkpoint,
                       std::vector<std::string>& notes)
    : folder_(folder),
      metrics_(folder.metrics(), LinesPerStep::kOne),
      samples_(folder.samples(), LinesPerStep::kAny) {
  const int64_t last = steps > 0 ? steps : -1;  // the evaluation before the first step is repeated
  auto state = find_state(checkpoint, notes);
  if (state) {
    history_ = std::move(state->history);
  }
  if (!state || !metrics_.cut_at(state->metrics)) {
    read_metrics(last, state.has_value(), notes);
  }
  if (!state || !samples_.cut_at(state->samples)) {
    samples_.keep_steps(last, [&](const Json& line) {
      if (const auto sample = read_sample(line); sample && !state) {
        history_.add(*sample);
      }
    });
  }
  if (state) {
    events_ = EventFile::resume(folder, state->events);
  }
  if (!events_) {
    make_events();
  }
}

void MetricsLog::read_metrics(int64_t steps, bool has_history, std::vector<std::string>& notes) {
  const std::string file = folder_.metrics().string();
  MissingSteps missing;
  const int64_t damaged = metrics_.keep_steps(steps, [&](const Json& line) {
    missing.see(line["step"]);
    if (!has_history) {
      history_.add(line, file);
    }
  });
  if (damaged > 0) {
    notes.push_back(fmt::format("{}: {} damaged line{} left out", file, damaged,
                                damaged == 1 ? " was" : "s were"));
  }
  if (const std::string words = missing.words(steps); !words.empty()) {
    notes.push_back(
        fmt::format("{}: the lines of steps {} are missing; the others are kept, and the run goes "
                    "on as if none were",
                    file, words));
  }
}

// Reads the file twice, because the event file needs the total time first.
void MetricsLog::make_events() {
  const auto for_each_line = [&](const std::function<void(const Json&)>& body) {
    FileReader in(folder_.metrics());
    for (std::string line; in.read_line(line);) {
      body(parse_json(line, folder_.metrics().string()));
    }
  };
  double seconds = 0;
  for_each_line([&](const Json& line) {
    seconds += get_double(line, "seconds", folder_.metrics().string(), 0);
  });
  events_.emplace(folder_, seconds);
  for_each_line([&](const Json& line) { events_->append(line); });
}

void MetricsLog::append(const OrderedJson& line, const std::vector<TextSample>& samples) {
  for (const auto& sample : samples) {
    samples_.append(to_line(sample), sample.step);
    history_.add(sample);
  }
  const OrderedJson whole = with_stage_ends(line, history_.relu_stages());
  const Json json(whole);
  metrics_.append(whole.dump(), json["step"]);
  events_->append(json);
  history_.add(json, folder_.metrics().string());
}

LogState MetricsLog::state() const {
  return {metrics_.mark(), samples_.mark(), events_->mark(), history_};
}

void MetricsLog::sync() const {
  metrics_.sync();
  samples_.sync();
  events_->sync();
  io::sync_folder(folder_.path());
}

void MetricsLog::report() const { write_report(folder_.path(), history_, folder_.report()); }

std::optional<double> last_learning_rate(const fs::path& model) {
  for (const auto& source : {lr_from_checkpoint, lr_from_upcycle_report, lr_from_metrics}) {
    try {
      if (const auto rate = source(model)) {
        return rate;
      }
    } catch (const UserError&) {  // damaged
    } catch (const fs::filesystem_error&) {
    }
  }
  return std::nullopt;
}

}  // namespace moe::train
