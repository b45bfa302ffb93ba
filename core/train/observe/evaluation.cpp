#include "core/train/observe/evaluation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/base/error.h"
#include "core/model/llama/generate.h"
#include "core/train/step/gradients.h"
#include "core/train/step/training_data.h"

namespace moe::train {
namespace {

using at::Tensor;

constexpr size_t kPrompts = 3;
constexpr int64_t kNewTokens = 64;

// Removes the last `surplus` tokens of a batch, which must be in its last row.
void shorten_last_row(data::Batch& batch, int64_t surplus) {
  if (surplus == 0) {
    return;
  }
  batch.ids.resize(batch.ids.size() - surplus);
  batch.targets.resize(batch.ids.size());
  batch.targets.back() = data::kNoLoss;  // the token that it predicts was removed
  batch.target_count = std::ssize(batch.targets) - std::ranges::count(batch.targets, data::kNoLoss);
  batch.rows.back() -= surplus;
  for (; surplus >= batch.lengths.back(); batch.lengths.pop_back()) {
    surplus -= batch.lengths.back();
  }
  batch.lengths.back() -= surplus;
}

// Returns the tokens before the first response, or the beginning of plain text.
std::vector<int64_t> prompt_ids(const data::Example& example) {
  constexpr ptrdiff_t kTextPrompt = 32;
  const auto first =
      std::ranges::find_if(example.labels, [](int32_t label) { return label != data::kNoLoss; });
  auto length = first - example.labels.begin();
  if (length <= 1) {  // only BOS
    length = std::min<ptrdiff_t>(kTextPrompt, (std::ssize(example.ids) + 1) / 2);
  }
  return {example.ids.begin(), example.ids.begin() + length};
}

}  // namespace

SingleEpochRows single_epoch_rows(const data::Examples& examples, data::BatchSettings settings,
                                  int64_t max_rows) {
  settings.shuffle = false;
  data::BatchStream stream(examples, settings);
  const auto all_rows = static_cast<int64_t>(std::ceil(stream.rows_per_epoch()));
  const int64_t rows = max_rows == 0 ? all_rows : std::min(max_rows, all_rows);
  SingleEpochRows epoch{{}, rows, all_rows};
  for (int64_t row = 0; row < rows; row += settings.rows) {
    const data::Batch batch = stream.next();
    epoch.batches.push_back(data::rows_of(batch, 0, std::min(settings.rows, rows - row)));
  }
  if (settings.pack == data::Pack::kStream && rows == all_rows) {
    shorten_last_row(epoch.batches.back(), rows * settings.seq_len - examples.tokens());
  }
  return epoch;
}

HeldOut::HeldOut(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                 int64_t vocab_size, data::HostTokens* shared) {
  TrainSettings held_out = settings;
  held_out.data = settings.evaluation.data;
  std::vector<std::string> lines;
  const data::Examples examples = read_data(
      held_out, checkpoint, vocab_size, [](int64_t, int64_t) {}, lines, shared);
  MOE_CHECK(examples.weights.empty());  // refused by check_numbers()
  SingleEpochRows epoch =
      single_epoch_rows(examples, batch_settings(settings), settings.evaluation.rows.value_or(0));
  batches_ = std::move(epoch.batches);
  for (const auto& batch : batches_) {
    targets_ += batch.target_count;
  }
  USER_ERROR_IF(targets_ == 0,
                "--eval-data: the first {} rows have no target token; raise --eval-rows",
                epoch.rows);
  tokenizer_ = find_tokenizer(checkpoint.folder(), vocab_size, checkpoint.edited_files());
  select_prompts(examples, *settings.seq_len);
  description_ =
      fmt::format("held out: {}; {} target tokens in {}{} rows",
                  fmt::join(describe_data(examples), "; "), targets_, epoch.rows,
                  epoch.rows == epoch.available_rows ? std::string()
                                                     : fmt::format(" of {}", epoch.available_rows));
  // Of the notes, which follow the lines of describe_data(), those about records.
  for (size_t i = examples.files.size(); i < lines.size(); ++i) {
    const auto begins_line = [&](const std::string& file) {
      return lines[i].starts_with(file + ": ");
    };
    if (lines[i].starts_with("skipped records") ||
        std::ranges::any_of(examples.files, begins_line)) {
      description_ += "; " + lines[i];
    }
  }
}

// Stores the first distinct prompts that leave room for a continuation.
void HeldOut::select_prompts(const data::Examples& examples, int64_t max_tokens) {
  for (int64_t index = 0; index < examples.size(); ++index) {
    std::vector<int64_t> prompt = prompt_ids(examples.at(index));
    const bool fits =
        std::ssize(prompt) + kNewTokens <= max_tokens || std::ssize(prompt) * 2 <= max_tokens;
    if (fits && std::ranges::find(prompts_, prompt) == prompts_.end()) {
      prompts_.push_back(std::move(prompt));
    }
    if (prompts_.size() == kPrompts) {
      return;
    }
  }
}

double HeldOut::loss(const model::Llama& model, const model::RoutingOptions& routing) const {
  const at::NoGradGuard no_gradients;
  double sum = 0;
  for (const auto& batch : batches_) {
    const Tensor hidden =
        model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing).hidden;
    model.with_head([&](const Tensor& weight) {
      sum += head_loss(weight.detach(), hidden, batch.targets, 1, model.product_type())
                 .nll_sum.item<double>();
    });
  }
  return sum / targets_;
}

std::vector<TextSample> HeldOut::samples(const model::Llama& model,
                                         const model::RoutingOptions& routing, int64_t step) const {
  model::GenerateSettings greedy;
  greedy.max_tokens = kNewTokens;
  greedy.eos_ids = tokenizer_ ? tokenizer_->stop_ids() : std::vector<int64_t>();
  std::vector<TextSample> samples;
  for (const auto& prompt : prompts_) {
    std::vector<int64_t> all = prompt;
    const auto continuation =
        model::generate(model, model::generation_routing(routing), prompt, greedy);
    all.insert(all.end(), continuation.begin(), continuation.end());
    const std::string prompt_text = decode(prompt);
    samples.push_back({step, prompt_text, io::text_after(prompt_text, decode(all))});
  }
  return samples;
}

std::string HeldOut::decode(const std::vector<int64_t>& ids) const {
  return tokenizer_ ? tokenizer_->decode(ids) : fmt::format("{} ", fmt::join(ids, " "));
}

Evaluator::Evaluator(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                     int64_t vocab_size, EvaluateTasks evaluate_tasks, data::HostTokens* shared)
    : settings_(settings.evaluation),
      steps_(*settings.steps),
      evaluate_tasks_(std::move(evaluate_tasks)) {
  if (!settings_.data.empty()) {
    held_out_.emplace(settings, checkpoint, vocab_size, shared);
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

Evaluation Evaluator::evaluate(const model::Llama& model, const model::RoutingOptions& routing,
                               int64_t step) const {
  const auto start = std::chrono::steady_clock::now();
  Evaluation evaluation;
  evaluation.step = step;
  if (held_out_) {
    evaluation.held_out_loss = held_out_->loss(model, routing);
    evaluation.samples = held_out_->samples(model, routing, step);
  }
  if (!settings_.tasks.empty()) {
    MOE_CHECK(evaluate_tasks_);
    evaluation.tasks = evaluate_tasks_(model, routing);
  }
  evaluation.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return evaluation;
}

}  // namespace moe::train
