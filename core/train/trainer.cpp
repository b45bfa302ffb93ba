#include "core/train/trainer.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/base/error.h"
#include "core/data/step_loader.h"
#include "core/model/timeline.h"
#include "core/train/event_file.h"
#include "core/train/gradients.h"
#include "core/train/optimizer.h"
#include "core/train/report.h"
#include "core/train/run_folder.h"
#include "core/train/saver.h"
#include "core/train/snapshot.h"
#include "core/train/starts.h"
#include "core/train/trainable.h"

namespace moe::train {

namespace {

// Where a run begins: at the folder it starts from, or at a checkpoint of its own.
struct Start {
  std::filesystem::path folder;  // of the weights
  bool resumed = false;
};

uint64_t model_bytes(const io::Checkpoint& checkpoint) {
  uint64_t bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    bytes += static_cast<uint64_t>(tensor.bytes());
  }
  return bytes;
}

// A model folder, and of every parameter the weight in f32 and two moments.
uint64_t checkpoint_bytes(const io::Checkpoint& checkpoint, const RunPlan& plan) {
  const uint64_t state = plan.settings.adamw.moments == MomentType::kBF16 ? 4 + 2 * 2 : 4 + 2 * 4;
  return model_bytes(checkpoint) + state * static_cast<uint64_t>(plan.parameters);
}

// The model of a run, with weights as `checkpoint` has them.
model::Llama load_model(const io::Checkpoint& checkpoint, const TrainSettings& settings) {
  model::Llama model = model::Llama::load(checkpoint);
  model.set_compute(settings.compute);
  model.add_lora(settings.lora, settings.seed);
  return model;
}

// One run, from the first batch to RUN/final.
class Run {
 public:
  Run(const RunPlan& plan,
      const data::Examples& examples,
      const io::Checkpoint& parent,
      const RunFolder& folder,
      const Start& start,
      Evaluator& evaluator,
      const TrainCallbacks& callbacks)
      : plan_(plan),
        parent_(parent),
        folder_(folder),
        callbacks_(callbacks),
        evaluator_(evaluator),
        model_(load_model(io::Checkpoint(start.folder), plan.settings)),
        trained_(trainable(model_, plan.settings.trained)),
        optimizer_(trained_, plan.settings.adamw, plan.settings.seed),
        saver_(parent, callbacks.on_saved) {
    const TrainSettings& settings = plan.settings;
    schedule_ = {
        settings.schedule, settings.lr, *settings.min_lr, settings.warmup, *settings.steps};
    if (plan.is_moe) {
      routing_ = plan.routing;
      position_.lambda = settings.lambda.value_or(0);
      position_.group_tokens = plan.group_tokens;
    }
    if (start.resumed) {
      position_ = restore(start.folder, model_, optimizer_);
    }
    loader_.emplace(data::BatchStream(examples, batch_settings(settings), position_.cursor),
                    *settings.global_batch / *settings.micro_batch);
    metrics_.emplace(folder.metrics(), position_.step);
    events_.emplace(folder.path(), folder.metrics());
    history_ = read_history(folder.metrics());
    evaluator.begin(folder.samples(), position_.step);
    for (const auto& parameter : trained_) {
      torch::Tensor(parameter.tensor).requires_grad_(true);
    }
  }

  void steps() {
    const int64_t steps = *plan_.settings.steps;
    saved_ = std::chrono::steady_clock::now();
    if (position_.step == 0) {
      evaluate({{"step", 0}});
    }
    std::optional<model::Timeline> timeline;
    const int64_t profiled_to = std::min(steps, position_.step + callbacks_.profiled_steps);
    if (position_.step < profiled_to) {
      timeline.emplace();
    }
    while (position_.step < steps) {
      if (callbacks_.stop_requested()) {
        interrupt();
      }
      const StepRecord record = step();
      callbacks_.on_step(record);
      if (timeline && position_.step == profiled_to) {
        timeline->finish(folder_.path() / "trace.json");
        timeline.reset();
      }
      if (!evaluate(to_json(record))) {
        append(to_json(record));
      }
      if (is_save_due() && bad_steps_ == 0) {
        save(folder_.checkpoint(position_.step));
      }
    }
    saver_.wait();
    folder_.keep_newest(plan_.settings.keep, plan_.settings.keep_every);
    model::save_folder(
        model_, routing_, parent_, folder_.final_model(), /*force=*/true, coefficients());
    report();
    callbacks_.on_saved(folder_.final_model());
  }

 private:
  bool is_relu() const { return routing_.router.family == route::Family::kRelu; }

  void append(const OrderedJson& line) {
    metrics_->append(line);
    const Json json(line);
    events_->append(json);
    history_.add(json, folder_.metrics().string());
  }

  // Appends the line of this step with what its evaluation found, or says that none is due.
  bool evaluate(OrderedJson line) {
    const auto evaluation = evaluator_.evaluate(model_, routing_, position_.step);
    if (evaluation) {
      add_evaluation(line, *evaluation);
      append(line);
      callbacks_.on_evaluated(*evaluation);
    }
    return evaluation.has_value();
  }

  void report() const { write_report(folder_.path(), history_, folder_.report()); }

  bool is_save_due() const {
    const TrainSettings& settings = plan_.settings;
    const std::chrono::duration<double, std::ratio<60>> since =
        std::chrono::steady_clock::now() - saved_;
    return (settings.save_every && position_.step % *settings.save_every == 0) ||
           (settings.save_minutes && since.count() >= *settings.save_minutes);
  }

  StepRecord step() {
    const auto start = std::chrono::steady_clock::now();
    const TrainSettings& settings = plan_.settings;
    const data::StepBatches data = loader_->next();
    const std::chrono::duration<double> data_wait = std::chrono::steady_clock::now() - start;
    position_.cursor = data.cursor;
    const AuxCoefficients coefficients{
        settings.lb_coef.value_or(0), settings.entropy_coef.value_or(0), position_.lambda};
    optimizer_.clear_gradients();
    const StepLosses losses = add_gradients(model_, data.batches, routing_, coefficients);
    const double norm = measured_norm();
    StepRecord record = describe(losses, coefficients);
    record.grad_norm = norm;
    record.lr = schedule_.at(position_.step);
    record.step = ++position_.step;
    move(record, losses.sparsity);
    record.peak_memory = peak_resident_bytes();
    record.data_wait_seconds = data_wait.count();
    record.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    record.tokens_per_second = static_cast<double>(record.tokens) / record.seconds;
    return record;
  }

  double measured_norm() const {
    RECORD_USER_SCOPE("optimizer");
    return gradient_norm(trained_);
  }

  // Moves the weights, or says in `record` why not.
  void move(StepRecord& record, double sparsity) {
    if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) {
      const bool is_loss = !std::isfinite(record.loss);
      note_skipped(record,
                   "not finite",
                   fmt::format("the {} is {}",
                               is_loss ? "loss" : "gradient norm",
                               is_loss ? record.loss : record.grad_norm));
      skip(record.skipped_why);
    } else {
      pass_numbers();
      if (const auto why = judge(record)) {
        ++position_.skipped_outliers;
        note_skipped(record, "outlier", *why);
      } else {
        update(record.grad_norm, record.lr, sparsity);
      }
    }
    record.skipped_steps = position_.skipped_steps;
    if (plan_.settings.skip_outliers) {
      record.skipped_outliers = position_.skipped_outliers;
    }
  }

  std::optional<std::string> judge(const StepRecord& record) {
    const auto z = plan_.settings.skip_outliers;
    return z ? judge_step(position_.outliers, record.loss, record.grad_norm, *z) : std::nullopt;
  }

  void note_skipped(StepRecord& record, const char* kind, const std::string& why) {
    ++position_.skipped_steps;
    record.skipped = true;
    record.skipped_kind = kind;
    record.skipped_why = why;
  }

  // Loss and gradient are numbers: only now is the newest checkpoint known to be good.
  void pass_numbers() {
    if (bad_steps_ == 0) {
      folder_.keep_newest(plan_.settings.keep, plan_.settings.keep_every);
    }
    bad_steps_ = 0;
  }

  void update(double norm, double lr, double sparsity) {
    RECORD_USER_SCOPE("optimizer");
    clip_gradients(trained_, norm, plan_.settings.clip);
    optimizer_.step(lr);
    if (is_relu()) {
      update_lambda(sparsity);
    }
  }

  // A loss or gradient that is no number moves no weight. Several in a row will not mend
  // themselves: the weights they began with are no good, nor is a checkpoint of them.
  void skip(const std::string& why) {
    constexpr int64_t kMostInARow = 5;
    if (++bad_steps_ < kMostInARow && position_.step > bad_steps_) {
      return;
    }
    saver_.wait();
    report();
    const int64_t good = position_.step - bad_steps_;
    folder_.remove_checkpoint(good);
    const auto last = folder_.last_checkpoint();
    throw std::runtime_error(fmt::format(
        "step {}: {}{}, the run stops; {}; a lower --lr, a --warmup or a lower --clip may "
        "help",
        good + 1,
        why,
        bad_steps_ == 1 ? "" : fmt::format(", and so for {} steps in a row", bad_steps_),
        last ? "the last good checkpoint is " + last->string()
             : std::string("no checkpoint was saved before (--save-every)")));
  }

  StepRecord describe(const StepLosses& losses, const AuxCoefficients& coefficients) {
    StepRecord record;
    record.loss = losses.loss;
    record.tokens = losses.tokens;
    record.target_tokens = losses.target_tokens;
    record.total_tokens = position_.total_tokens += losses.tokens;
    if (!plan_.is_moe) {
      return record;
    }
    record.load_balance_loss = losses.load_balance;
    record.entropy_loss = losses.entropy;
    record.l1_loss = losses.l1;
    record.auxiliary = losses.load_balance.value_or(0) * coefficients.load_balance +
                       losses.entropy.value_or(0) * coefficients.entropy +
                       losses.l1.value_or(0) * coefficients.l1;
    record.moe_layers = model_.config().moe->layers;
    record.layer_counters = losses.layers;
    record.row_bytes = model_.config().hidden_size * static_cast<int64_t>(sizeof(float));
    if (is_relu()) {
      record.lambda = position_.lambda;
      record.sparsity = losses.sparsity;
    }
    return record;
  }

  // SPEC section 9: the weight of L1 rises while too many experts run, else it falls.
  void update_lambda(double sparsity) {
    const auto& router = routing_.router;
    const double target =
        1.0 - static_cast<double>(router.k) / static_cast<double>(model_.config().moe->experts);
    position_.lambda =
        route::next_lambda(position_.lambda, sparsity, target, router.lambda_multiplier);
  }

  void save(const std::filesystem::path& out) {
    io::check_space(folder_.path(), checkpoint_bytes(parent_, plan_));
    saver_.save(Snapshot(model_, optimizer_, routing_, coefficients(), position_), out);
    report();  // after it: on a full disk the checkpoint comes first
    saved_ = std::chrono::steady_clock::now();
  }

  // A loss that the router does not have is stored as off.
  model::LossCoefficients coefficients() const {
    return {plan_.settings.lb_coef.value_or(0),
            plan_.settings.entropy_coef.value_or(0),
            is_relu() ? std::optional(position_.lambda) : std::nullopt};
  }

  [[noreturn]] void interrupt() {
    saver_.wait();
    if (position_.step == 0) {
      throw Interrupted("stopped before the first step, nothing was saved");
    }
    const auto out = folder_.checkpoint(position_.step);
    if (!std::filesystem::exists(out)) {
      save(out);
      saver_.wait();
    } else {
      report();
    }
    throw Interrupted(
        fmt::format("stopped after step {} of {}; saved {}; the same command goes on from there",
                    position_.step,
                    *plan_.settings.steps,
                    out.string()));
  }

  const RunPlan& plan_;
  const io::Checkpoint& parent_;
  const RunFolder& folder_;
  const TrainCallbacks& callbacks_;
  Evaluator& evaluator_;
  model::Llama model_;
  model::RoutingOptions routing_;
  std::vector<model::NamedParameter> trained_;
  AdamW optimizer_;
  Saver saver_;
  std::optional<data::StepLoader> loader_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
  History history_;
  Schedule schedule_;
  Position position_;
  int64_t bad_steps_ = 0;  // in a row, up to now
  std::chrono::steady_clock::time_point saved_;
};

// Every file of a run: checkpoints that stand at once (one more than are kept), of which `there`
// are there already, and final.
void check_run_space(const RunPlan& plan, const io::Checkpoint& checkpoint, size_t there) {
  const bool saves = plan.settings.save_every || plan.settings.save_minutes;
  const auto wanted = saves ? static_cast<size_t>(plan.settings.keep) + 1 : 0;
  const size_t missing = saves ? std::max<size_t>(1, wanted - std::min(wanted, there)) : 0;
  io::check_space(plan.settings.run,
                  model_bytes(checkpoint) + missing * checkpoint_bytes(checkpoint, plan));
}

OrderedJson start_line(const RunPlan& plan) {
  OrderedJson line = describe_start(plan.first_step);
  line["parameters"] = plan.parameters;
  if (plan.is_moe) {
    line["router"] = to_string(plan.routing.router);
    line["loss"] = plan.losses;
  }
  line["data"] = plan.data;
  line["notes"] = plan.notes;
  return line;
}

// The newest whole checkpoint of a run that goes on; notes say what was found.
Start find_start(const RunFolder& folder, RunState state, RunPlan& plan) {
  if (state != RunState::kGoesOn) {
    return {plan.settings.model, false};
  }
  const auto checkpoint = folder.newest_whole(plan.notes);
  if (!checkpoint) {
    plan.notes.push_back("goes on from step 0: no checkpoint was saved before");
    return {plan.settings.model, false};
  }
  plan.first_step = read_position(*checkpoint).step;
  plan.notes.push_back(
      fmt::format("goes on after step {}, from {}", plan.first_step, checkpoint->string()));
  return {*checkpoint, true};
}

}  // namespace

void train(const TrainSettings& settings, const TrainCallbacks& callbacks) {
  check_numbers(settings);
  RunFolder folder(settings.run, settings.model, settings.force);
  auto [checkpoint, examples, plan, evaluator] = prepare(settings, callbacks);
  const std::string toml = to_toml(plan.settings);
  const RunState state = folder.state(toml);
  if (state == RunState::kDone) {
    plan.first_step = *plan.settings.steps;
    plan.notes.push_back(
        fmt::format("is finished: {}; --force begins anew", folder.final_model().string()));
    callbacks.on_start(plan);
    return;
  }
  check_run_space(plan, checkpoint, state == RunState::kGoesOn ? folder.saved_steps().size() : 0);
  const Start start = find_start(folder, state, plan);
  folder.begin(toml, state);
  append_start(folder.starts(), start_line(plan));
  callbacks.on_start(plan);
  Run(plan, examples, checkpoint, folder, start, *evaluator, callbacks).steps();
}

}  // namespace moe::train
