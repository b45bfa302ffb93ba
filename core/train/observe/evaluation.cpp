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

void cut_row(data::Batch& row, int64_t tokens) {
  const auto size = static_cast<size_t>(tokens);
  row.ids.resize(size);
  row.targets.resize(size);
  row.targets.back() = data::kNoLoss;  // the token that it predicts was cut
  int64_t seen = 0;
  std::vector<int64_t> lengths;
  for (const int64_t length : row.lengths) {
    if (seen < tokens) {
      lengths.push_back(std::min(length, tokens - seen));
    }
    seen += length;
  }
  row.lengths = lengths;
  row.rows = {tokens};
  row.target_count = size - std::ranges::count(row.targets, data::kNoLoss);
}

void append(data::Batch& batch, const data::Batch& row) {
  batch.ids.insert(batch.ids.end(), row.ids.begin(), row.ids.end());
  batch.targets.insert(batch.targets.end(), row.targets.begin(), row.targets.end());
  batch.lengths.insert(batch.lengths.end(), row.lengths.begin(), row.lengths.end());
  batch.rows.insert(batch.rows.end(), row.rows.begin(), row.rows.end());
  batch.target_count += row.target_count;
}

// Returns the tokens before the first response; the beginning of plain text.
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
  const int64_t rows_a_batch = settings.rows;
  settings.rows = 1;
  settings.shuffle = false;
  data::BatchStream stream(examples, settings);
  const auto all_rows = static_cast<int64_t>(std::ceil(stream.rows_per_epoch()));
  const int64_t rows = max_rows == 0 ? all_rows : std::min(max_rows, all_rows);
  SingleEpochRows once{{}, rows, all_rows};
  for (int64_t row = 0; row < rows; ++row) {
    data::Batch next_row = stream.next();
    if (settings.pack == data::Pack::kStream && row + 1 == all_rows) {
      cut_row(next_row, examples.tokens() - row * settings.seq_len);
    }
    if (row % rows_a_batch == 0) {
      once.batches.emplace_back();
    }
    append(once.batches.back(), next_row);
  }
  return once;
}

HeldOut::HeldOut(const TrainSettings& settings, const io::Checkpoint& checkpoint,
                 int64_t vocab_size, data::HostTokens* shared) {
  TrainSettings held_out = settings;
  held_out.data = settings.evaluation.data;
  std::vector<std::string> lines;
  const data::Examples examples = read_data(
      held_out, checkpoint, vocab_size, [](int64_t, int64_t) {}, lines, shared);
  MOE_CHECK(examples.weights.empty());  // refused by check_numbers()
  SingleEpochRows once =
      single_epoch_rows(examples, batch_settings(settings), settings.evaluation.rows.value_or(0));
  batches_ = std::move(once.batches);
  for (const auto& batch : batches_) {
    targets_ += batch.target_count;
  }
  USER_ERROR_IF(targets_ == 0,
                "--eval-data: the first {} rows have no target token; raise --eval-rows",
                once.rows);
  tokenizer_ = find_tokenizer(checkpoint.folder(), vocab_size, checkpoint.edited_files());
  take_prompts(examples, *settings.seq_len);
  description_ =
      fmt::format("held out: {}; {} target tokens in {}{} rows",
                  fmt::join(describe_data(examples), "; "), targets_, once.rows,
                  once.rows == once.available_rows ? std::string()
                                                   : fmt::format(" of {}", once.available_rows));
}

// Stores the first distinct prompts that leave room for a continuation.
void HeldOut::take_prompts(const data::Examples& examples, int64_t max_tokens) {
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
    const auto fresh = model::generate(model, model::generation_routing(routing), prompt, greedy);
    all.insert(all.end(), fresh.begin(), fresh.end());
    const std::string before = decode(prompt), whole = decode(all);
    samples.push_back({step, before, io::text_after(before, whole)});
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
