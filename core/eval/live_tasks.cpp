#include "core/eval/live_tasks.h"

#include "core/base/error.h"
#include "core/eval/report/task_report.h"
#include "core/io/checkpoint.h"

namespace moe::eval {

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
