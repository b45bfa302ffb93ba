#include "core/eval/encoded_tasks.h"

#include "core/base/error.h"
#include "core/eval/report/task_report.h"
#include "core/eval/scoring/generate_until.h"
#include "core/io/checkpoint.h"

namespace moe::eval {

std::vector<TextPair> right_answers(const std::vector<Question>& questions) {
  std::vector<TextPair> pairs;
  for (const auto& question : questions) {
    if (!question.target.empty()) {
      pairs.push_back({question.context, question.delimiter + question.target, question.where,
                       question.source});
    }
  }
  return pairs;
}

EncodedTask encode_task(const TextEncoder& encoder, const LoadedTask& loaded, bool counts_routing) {
  EncodedTask encoded;
  if (loaded.task.output != OutputType::kGenerateUntil) {
    encoded.requests = encode_requests(encoder, text_pairs(loaded.questions));
    return encoded;
  }
  for (const auto& question : loaded.questions) {
    encoded.prompts.push_back(encode_prompt(encoder, loaded.task.generation, question.context));
  }
  if (counts_routing) {
    encoded.requests = encode_requests(encoder, right_answers(loaded.questions));
  }
  return encoded;
}

EncodedTasks::EncodedTasks(TextEncoder encoder, const std::vector<LoadedTask>& tasks,
                           bool counts_routing)
    : encoder_(std::move(encoder)),
      counts_routing_(counts_routing),
      encoded_(tasks.size()),
      thread_([this, &tasks](const std::stop_token& stop) { encode_all(tasks, stop); }) {}

EncodedTasks::~EncodedTasks() = default;

void EncodedTasks::encode_all(const std::vector<LoadedTask>& tasks, const std::stop_token& stop) {
  try {
    for (size_t i = 0; i < tasks.size() && !stop.stop_requested(); ++i) {
      EncodedTask encoded = encode_task(encoder_, tasks[i], counts_routing_);
      const std::lock_guard lock(mutex_);
      encoded_[i] = std::move(encoded);
      done_ = i + 1;
      changed_.notify_all();
    }
  } catch (...) {
    const std::lock_guard lock(mutex_);
    failed_ = std::current_exception();
    changed_.notify_all();
  }
}

const EncodedTask& EncodedTasks::at(size_t index) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || done_ > index; });
  if (failed_) {
    std::rethrow_exception(failed_);
  }
  return encoded_.at(index);
}

LiveTasks::LiveTasks(const std::filesystem::path& folder, const std::vector<std::string>& names,
                     const std::filesystem::path& data, std::optional<int64_t> limit)
    : tasks_(load_tasks(names, data, limit)) {
  const io::Checkpoint checkpoint(folder);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  const auto tokenizer = io::Tokenizer::load(folder, config.vocab_size);
  const TextEncoder encoder =
      make_encoder(tokenizer, resolve_bos(Bos::kAuto, tokenizer), config.max_position_embeddings);
  for (const auto& loaded : tasks_) {
    if (loaded.task.output == OutputType::kGenerateUntil) {
      throw UserError(
          "task {}: its answers are generated token by token, which would hold up training; leave "
          "it "
          "out and run moe eval on the checkpoints",
          loaded.task.name);
    }
    requests_.push_back(encode_requests(encoder, text_pairs(loaded.questions)));
  }
}

std::map<std::string, std::map<std::string, Mean>> LiveTasks::run(
    const model::Llama& llama, const model::RoutingOptions& routing) const {
  std::map<std::string, std::map<std::string, Mean>> means;
  ScoreSettings settings;
  settings.routing = routing;
  for (size_t task = 0; task < tasks_.size(); ++task) {
    Scores scores = score_requests(llama, requests_[task], settings);
    means[tasks_[task].task.name] =
        make_task_report(tasks_[task], std::move(scores), /*resamples=*/0).metrics;
  }
  return means;
}

}  // namespace moe::eval
