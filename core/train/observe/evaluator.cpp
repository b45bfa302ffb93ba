#include "core/train/observe/evaluator.h"

#include <chrono>
#include <fstream>

#include "core/base/error.h"
#include "core/io/file.h"

namespace moe::train {

namespace fs = std::filesystem;

namespace {

std::string line_of(const TextSample& sample) {
  const OrderedJson json = {
      {"step", sample.step}, {"prompt", sample.prompt}, {"text", sample.text}};
  return json.dump(-1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace

Evaluator::Evaluator(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                     int64_t vocab_size, EvaluateTasks evaluate_tasks)
    : settings_(settings.evaluation),
      steps_(*settings.steps),
      evaluate_tasks_(std::move(evaluate_tasks)) {
  if (!settings_.data.empty()) {
    held_out_.emplace(settings, checkpoint, vocab_size);
  }
}

std::vector<std::string> Evaluator::description() const {
  std::vector<std::string> lines;
  if (held_out_) {
    lines.push_back(held_out_->description());
  }
  if (settings_.any()) {
    lines.push_back(fmt::format(
        "evaluates {}{}{} before the first step, every {} and at the end",
        held_out_ ? "held-out loss" : "", held_out_ && !settings_.tasks.empty() ? ", " : "",
        fmt::join(settings_.tasks, ", "),
        *settings_.every == 1 ? "step" : fmt::format("{} steps", *settings_.every)));
  }
  return lines;
}

void Evaluator::begin(const fs::path& samples_file, int64_t step) {
  samples_file_ = samples_file;
  if (!fs::exists(samples_file)) {
    return;
  }
  std::string kept;
  for (const auto& sample : read_samples_file(samples_file)) {
    if (step > 0 && sample.step <= step) {
      kept += line_of(sample);
    }
  }
  io::write_file(samples_file, kept);
}

std::optional<Evaluation> Evaluator::evaluate(const model::Llama& model,
                                              const model::RoutingOptions& routing,
                                              int64_t step) const {
  if (!is_due(step)) {
    return std::nullopt;
  }
  const auto start = std::chrono::steady_clock::now();
  Evaluation evaluation;
  evaluation.step = step;
  if (held_out_) {
    evaluation.held_out_loss = held_out_->loss(model, routing);
    write(held_out_->samples(model, routing, step));
  }
  if (!settings_.tasks.empty()) {
    MOE_CHECK(evaluate_tasks_);
    evaluation.tasks = evaluate_tasks_(model, routing);
  }
  evaluation.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return evaluation;
}

void Evaluator::write(const std::vector<TextSample>& samples) const {
  if (samples_file_.empty()) {
    return;
  }
  std::ofstream out(samples_file_, std::ios::binary | std::ios::app);
  for (const auto& sample : samples) {
    out << line_of(sample);
  }
  out.flush();
  if (!out) {
    throw UserError("{}: cannot be written; is the disk full?", samples_file_.string());
  }
}

std::vector<TextSample> read_samples_file(const fs::path& file) {
  std::vector<TextSample> samples;
  std::ifstream in(file, std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto is_text = [&](const char* key) {
      return json.contains(key) && json[key].is_string();
    };
    if (!json.is_object() || !json.value("step", Json()).is_number_integer() ||
        !is_text("prompt") || !is_text("text")) {
      break;
    }
    samples.push_back({json["step"], json["prompt"], json["text"]});
  }
  return samples;
}

}  // namespace moe::train
