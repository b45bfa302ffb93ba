#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/data/batches.h"
#include "core/distributed/comm.h"
#include "core/model/llama/timeline.h"
#include "core/route/router.h"
#include "core/train/checkpoint/snapshot.h"
#include "core/train/loop/plan.h"
#include "core/train/observe/metrics.h"
#include "core/train/step/gradients.h"
#include "core/train/step/optimizer.h"
#include "core/train/step/training_data.h"
#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/device.h"

namespace moe::train {
namespace {

model::Llama load_model(const io::Checkpoint& checkpoint, const TrainSettings& settings,
                        distributed::World& world) {
  const bool shards = settings.shard == Shard::kWeights && world.layout.processes > 1;
  model::Llama model =
      model::Llama::load(checkpoint, world.layout, world.all.device(), model::Storage::kF32,
                         settings.compute, shards ? &world.all : nullptr);
  model.set_group(world.layout.group() > 1 ? world.group.get() : nullptr);
  model.set_compute(settings.compute);
  model.add_lora(settings.lora, settings.seed);
  return model;
}

// Throws UserError if a weight of `model`, read from `folder`, is NaN or infinite. A training step
// may not detect it, because an expert without tokens does not affect the loss.
void check_finite(const model::Llama& model, const std::filesystem::path& folder) {
  const at::NoGradGuard no_gradients;
  for (const auto& parameter : model.parameters()) {
    const at::Tensor& weight = parameter.shard.defined() ? parameter.shard : parameter.tensor;
    // The infinity norm propagates NaN and does not overflow.
    USER_ERROR_IF(
        weight.numel() > 0 &&
            !std::isfinite(at::linalg_vector_norm(weight, INFINITY).item<double>()),
        "{}: tensor '{}' has a weight that is NaN or infinite; give a checkpoint whose weights are "
        "finite",
        folder.string(), parameter.name);
  }
}

// Returns a copy of `local` with the experts of all processes of `group`. Collective. `parent` is a
// folder of a model of the same shapes.
model::Llama gather_experts(const model::Llama& local, const io::Checkpoint& parent,
                            const model::ComputeOptions& compute, distributed::Comm& group) {
  const at::NoGradGuard no_gradients;
  model::Llama whole = model::Llama::load(parent, {}, local.device());
  whole.set_compute(compute);
  whole.add_lora(local.lora(), /*seed=*/0);
  whole.set_router_bias(!local.router_biases().empty());
  for (size_t i = 0; i < local.router_biases().size(); ++i) {
    whole.router_biases()[i].copy_(local.router_biases()[i]);
  }
  const auto from = local.parameters(), to = whole.parameters();
  MOE_CHECK(from.size() == to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    at::Tensor into = to[i].tensor.detach();
    if (from[i].is_expert) {
      group.all_gather(from[i].tensor.detach().contiguous().view({-1}), into.view({-1}));
    } else {
      into.copy_(local.gathered(from[i]));
    }
  }
  return whole;
}

// Returns the batches from `cursor` on. Throws UserError that names the checkpoint if the cursor of
// a resumed run does not fit the data.
data::BatchStream batches_at(const data::Examples& examples, const data::BatchSettings& settings,
                             const data::Cursor& cursor, const ResumePlan& start) {
  try {
    return {examples, settings, cursor};
  } catch (const UserError& error) {
    if (!start.resumed) {
      throw;
    }
    throw UserError("{}: {}; the checkpoint is damaged; remove it to resume from an earlier one",
                    train_state_file(start.folder).string(), error.what());
  }
}

// Training loop of a run, from its first step to RUN/final.
class Run {
 public:
  Run(const RunPlan& plan, const data::Examples& examples, const io::Checkpoint& parent,
      const RunFolder& folder, const ResumePlan& start, const Evaluator& evaluator,
      const TrainCallbacks& callbacks, distributed::World& world)
      : plan_(plan),
        parent_(parent),
        folder_(folder),
        callbacks_(callbacks),
        evaluator_(evaluator),
        world_(world),
        shared_world_(world.layout.processes > 1 ? &world : nullptr),
        model_(load_model(start.resumed ? io::Checkpoint(start.folder) : parent, plan.settings,
                          world)),
        trained_(trainable(model_, plan.settings.trained)),
        updater_(trained_, plan.settings.adamw, plan.settings.seed, shared_world_),
        log_(start.log.get()),
        saver_(parent, world, callbacks.on_saved, callbacks.on_saving) {
    const TrainSettings& settings = plan.settings;
    if (plan.is_moe) {
      routing_ = plan.routing;
      model_.set_router_bias(routing_.router.bias_rate.has_value());
      state_.lambda = settings.lambda.value_or(0);
      state_.group_tokens = plan.group_tokens;
    }
    if (start.resumed) {
      state_ = restore(start.folder, model_, updater_.optimizer());
      saved_step_ = state_.step;
    } else {
      distributed::on_all_ranks(&world.all, [&] { check_finite(model_, settings.model); });
    }
    loader_.emplace(batches_at(examples, batch_settings(settings), state_.cursor, start),
                    *settings.global_batch / *settings.micro_batch);
    for (const auto& parameter : trained_) {
      at::Tensor(parameter.tensor).requires_grad_(true);
      if (has_bf16_copy(parameter, model_.config(), settings)) {
        kernels::keep_bf16_working_copy(parameter.tensor);
      }
    }
  }

  void steps() {
    const int64_t steps = *plan_.settings.steps;
    saved_ = std::chrono::steady_clock::now();
    if (state_.step == 0) {
      evaluate({{"step", 0}});
    }
    std::optional<model::Timeline> timeline;
    const int64_t profiled_to = std::min(steps, state_.step + callbacks_.profiled_steps);
    if (state_.step < profiled_to && is_rank_zero()) {
      timeline.emplace();
    }
    while (state_.step < steps) {
      world_.set_trace({state_.step + 1});
      if (distributed::any_rank(&world_.all, callbacks_.stop_requested())) {
        interrupt();
      }
      const StepRecord record = step();
      callbacks_.on_step(record);
      if (!record.has_loss() && record.steps_without_targets == 1 && is_rank_zero()) {
        callbacks_.on_warning(fmt::format(
            "step {} has no token with loss: its sequences hold no part of an answer. Such steps "
            "have no loss and are counted; a longer --seq-len or a larger --global-batch avoids "
            "them",
            record.step));
      }
      if (timeline && state_.step == profiled_to) {
        timeline->finish(folder_.path() / "trace.json");
        timeline.reset();
      }
      if (!evaluate(to_json(record))) {
        append(to_json(record));
      }
      if (is_save_due() && bad_steps_ == 0) {
        save(folder_.checkpoint(state_.step));
      }
    }
    if (log_ != nullptr && log_->collapse().news().empty() && !log_->collapse().state().empty()) {
      callbacks_.on_warning("at the end of the run, " + log_->collapse().state());
    }
    saver_.wait();
    remove_older_checkpoints();
    distributed::on_all_ranks(&world_.all, [&] {
      if (log_ != nullptr) {
        log_->sync();  // a complete run is not resumed, so lost lines would not be written again
      }
    });
    callbacks_.on_saving(true);
    model::save_folder(model_, routing_, parent_, folder_.final_model(), /*force=*/true, world_.all,
                       coefficients(), [&](const std::filesystem::path& staged) {
                         io::write_edited_files(staged, plan_.chat_files);
                       });
    callbacks_.on_saving(false);
    report();
    callbacks_.on_saved(folder_.final_model());
  }

 private:
  bool has_lambda() const { return routing_.router.family->has_adaptive_l1; }

  // Updates lambda of the L1 loss and the router biases after a step. Both keep their values while
  // the router is frozen, because they could not change the measured load.
  void update_controllers(const StepLosses& losses) {
    const std::vector<std::string>& trained = plan_.settings.trained;
    if (has_lambda() && trains_router(trained, model_.config())) {
      state_.lambda = route::next_lambda(state_.lambda, losses.sparsity, target_sparsity(),
                                         routing_.router.lambda_multiplier);
    }
    if (routing_.router.bias_rate.value_or(0) > 0) {
      const std::vector<at::Tensor> biases = model_.router_biases();
      for (size_t i = 0; i < biases.size(); ++i) {
        if (trains_router(trained, model_.config().moe->layers.at(i))) {
          route::update_bias(biases[i], losses.layers[i].requests_per_expert,
                             *routing_.router.bias_rate);
        }
      }
    }
  }

  bool is_rank_zero() const { return world_.layout.is_rank_zero(); }

  void append(const OrderedJson& line, const std::vector<TextSample>& samples = {}) {
    if (log_ != nullptr) {
      log_->append(line, samples);
      if (const std::string news = log_->collapse().news(); !news.empty()) {
        callbacks_.on_warning(news);
      }
    }
  }

  // Evaluates, and appends `line` with the results to the log. Returns false if no evaluation is
  // due.
  bool evaluate(OrderedJson line) {
    if (!evaluator_.is_due(state_.step)) {
      return false;
    }
    std::optional<model::Llama> whole;  // every process evaluates it, with equal results
    if (world_.layout.group() > 1) {
      whole.emplace(gather_experts(model_, parent_, plan_.settings.compute, *world_.group));
    }
    const auto announced = world_.all.long_operation();
    const Evaluation result = evaluator_.evaluate(whole ? *whole : model_, routing_, state_.step);
    add_evaluation(line, result);
    append(line, result.samples);
    callbacks_.on_evaluated(result);
    return true;
  }

  void report() const {
    if (log_ != nullptr) {
      log_->report();
    }
  }

  bool is_save_due() const {
    const TrainSettings& settings = plan_.settings;
    const std::chrono::duration<double, std::ratio<60>> since =
        std::chrono::steady_clock::now() - saved_;
    return (settings.save_every && state_.step % *settings.save_every == 0) ||
           (settings.save_minutes &&
            distributed::any_rank(&world_.all, since.count() >= *settings.save_minutes));
  }

  StepRecord step() {
    const auto start = std::chrono::steady_clock::now();
    const TrainSettings& settings = plan_.settings;
    const data::StepBatches data = loader_->next();
    const std::chrono::duration<double> data_wait = std::chrono::steady_clock::now() - start;
    state_.cursor = data.cursor;
    const AuxCoefficients coefficients{
        settings.lb_coef.value_or(0), settings.entropy_coef.value_or(0), state_.lambda,
        settings.z_coef.value_or(0), settings.seq_lb_coef.value_or(0)};
    updater_.clear_gradients();
    StepRecord record;
    static_cast<StepLosses&>(record) =
        add_gradients(model_, data.batches, routing_, coefficients, shared_world_);
    record.grad_norm = updater_.gradient_norm();
    complete_record(record, coefficients);
    record.lr = learning_rate(settings, state_.step);
    record.step = ++state_.step;
    update(record);
    record.peak_memory = peak_resident_bytes();
    record.gpu_memory = kernels::device_peak_bytes(model_.device());
    record.data_wait_seconds = data_wait.count();
    record.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    record.tokens_per_second = record.tokens / record.seconds;
    return record;
  }

  // Updates the weights, or records in `record` why the step is skipped.
  void update(StepRecord& record) {
    if (!std::isfinite(record.loss) || !std::isfinite(record.grad_norm)) {
      const bool is_loss = !std::isfinite(record.loss);
      note_skipped(record, "not finite",
                   fmt::format("the {} is {}", is_loss ? "loss" : "gradient norm",
                               is_loss ? record.loss : record.grad_norm));
      skip(record.skipped_why);
    } else {
      if (bad_steps_ == 0 && has_older_checkpoints_ && !saver_.is_writing()) {
        remove_older_checkpoints();  // the finite loss and gradient show that the newest is good
      }
      bad_steps_ = 0;
      const auto z = plan_.settings.skip_outliers;
      if (const auto why = z && record.has_loss()
                               ? find_outlier(state_.outliers, record.loss, record.grad_norm, *z)
                               : std::nullopt) {
        ++state_.skipped_outliers;
        note_skipped(record, "outlier", *why);
      } else {
        updater_.step(record.grad_norm, plan_.settings.clip, record.lr);
        if (plan_.is_moe) {
          update_controllers(record);
        }
      }
    }
    record.skipped_steps = state_.skipped_steps;
    if (plan_.settings.skip_outliers) {
      record.skipped_outliers = state_.skipped_outliers;
    }
  }

  void note_skipped(StepRecord& record, const char* kind, const std::string& why) {
    ++state_.skipped_steps;
    record.skipped = true;
    record.skipped_kind = kind;
    record.skipped_why = why;
  }

  // Requires that no checkpoint is being written.
  void remove_older_checkpoints() {
    if (is_rank_zero()) {
      folder_.keep_newest(plan_.settings.keep, plan_.settings.keep_every);
    }
    has_older_checkpoints_ = false;
  }

  // Counts a step whose loss or gradient is not finite. After several in a row, or if no step of
  // the run was finite, removes a checkpoint that was saved just before them and throws
  // std::runtime_error.
  void skip(const std::string& why) {
    constexpr int64_t kMaxConsecutive = 5;
    if (++bad_steps_ < kMaxConsecutive && state_.step > bad_steps_) {
      return;
    }
    saver_.wait();
    report();
    const int64_t good = state_.step - bad_steps_;
    if (is_rank_zero()) {
      folder_.remove_checkpoint(good);
    }
    world_.all.barrier();
    const auto last = folder_.last_checkpoint();
    throw std::runtime_error(fmt::format(
        "step {}: {}{}, the run stops; {}; a lower --lr, a --warmup or a lower --clip may help",
        good + 1, why,
        bad_steps_ == 1 ? "" : fmt::format(", and so for {} steps in a row", bad_steps_),
        last ? "the last good checkpoint is " + last->string()
             : std::string("no checkpoint was saved before (--save-every)")));
  }

  // Sets total_tokens and, for a mixture, the fields of auxiliary losses and routing.
  void complete_record(StepRecord& record, const AuxCoefficients& coefficients) {
    record.total_tokens = state_.total_tokens += record.tokens;
    record.steps_without_targets = state_.steps_without_targets += record.has_loss() ? 0 : 1;
    if (!plan_.is_moe) {
      return;
    }
    record.auxiliary = 0;
    for (size_t i = 0; i < route::kAllLosses.size(); ++i) {
      *record.auxiliary += (record.*StepLosses::members()[i]).value_or(0) *
                           coefficients.*AuxCoefficients::members()[i];
    }
    for (const auto& bias : model_.router_biases()) {
      record.bias_max = std::max(record.bias_max.value_or(0), bias.abs().max().item<double>());
    }
    record.moe_layers = model_.config().moe->layers;
    record.row_bytes = model_.config().hidden_size * static_cast<int64_t>(sizeof(float));
    if (has_lambda()) {
      record.lambda = state_.lambda;
      record.target_sparsity = target_sparsity();
    }
  }

  // Returns S* = 1 - k / E.
  double target_sparsity() const {
    return 1.0 - static_cast<double>(routing_.router.k) / model_.config().moe->experts;
  }

  void save(const std::filesystem::path& out) {
    saver_.wait();
    if (has_older_checkpoints_ && state_.step != saved_step_ && bad_steps_ == 0) {
      remove_older_checkpoints();
    }
    distributed::on_all_ranks(&world_.all, [&] {
      if (is_rank_zero()) {
        folder_.claim(out);
        io::check_space(folder_.path(), checkpoint_bytes(parent_, plan_));
      }
    });
    saver_.save(Snapshot(model_, updater_.optimizer(), routing_, coefficients(), state_), out,
                log_files());
    saved_step_ = state_.step;
    has_older_checkpoints_ = true;
    report();  // afterwards: if the disk is full, the checkpoint has priority
    saved_ = std::chrono::steady_clock::now();
  }

  // Returns the log files of a checkpoint. The log is synced before the checkpoint appears.
  AddFiles log_files() const {
    if (log_ == nullptr) {
      return {};
    }
    const auto state = std::make_shared<const LogState>(log_->state());
    return [log = log_, state](const std::filesystem::path& folder) {
      log->sync();
      write_log_state(*state, folder);
    };
  }

  // Returns the coefficients for config.json, 0 for losses that the router does not have.
  model::LossCoefficients coefficients() const {
    return {plan_.settings.lb_coef.value_or(0), plan_.settings.entropy_coef.value_or(0),
            has_lambda() ? std::optional(state_.lambda) : std::nullopt,
            plan_.settings.z_coef.value_or(0), plan_.settings.seq_lb_coef.value_or(0)};
  }

  [[noreturn]] void interrupt() {
    callbacks_.on_saving(true);  // until the process exits
    saver_.wait();
    if (state_.step == 0) {
      throw Interrupted("stopped before the first step; nothing was saved");
    }
    const auto out = folder_.checkpoint(state_.step);
    if (state_.step != saved_step_) {
      save(out);
      saver_.wait();
    } else {
      report();
    }
    throw Interrupted(
        fmt::format("stopped after step {} of {}; saved {}; run the same command to resume",
                    state_.step, *plan_.settings.steps, out.string()));
  }

  const RunPlan& plan_;
  const io::Checkpoint& parent_;
  const RunFolder& folder_;
  const TrainCallbacks& callbacks_;
  const Evaluator& evaluator_;
  distributed::World& world_;
  distributed::World* shared_world_;  // &world_, null for a single process
  model::Llama model_;
  model::RoutingOptions routing_;
  std::vector<model::NamedParameter> trained_;
  Updater updater_;
  MetricsLog* log_;  // of rank 0, else null; used by the saver
  Saver saver_;
  std::optional<data::StepLoader> loader_;
  TrainState state_;
  int64_t bad_steps_ = 0;              // consecutive steps that were not finite
  int64_t saved_step_ = -1;            // step of the newest checkpoint
  bool has_older_checkpoints_ = true;  // there may be checkpoints to remove
  std::chrono::steady_clock::time_point saved_;
};

}  // namespace

void train(const TrainSettings& settings, const TrainCallbacks& callbacks,
           distributed::Comm* ranks) {
  const std::unique_ptr<distributed::Comm> alone = distributed::solo_comm();
  distributed::Comm& all_ranks = ranks == nullptr ? *alone : *ranks;
  std::optional<RunFolder> folder;
  distributed::on_all_ranks(&all_ranks, [&] {
    check_numbers(settings);
    folder.emplace(settings.run, settings.model, settings.force, input_paths(settings));
  });
  auto [checkpoint, examples, plan, evaluator] = prepare(settings, callbacks, all_ranks);
  const ResumePlan start = begin_run(*folder, plan, checkpoint, all_ranks);
  callbacks.on_start(plan);
  if (!start.is_done) {
    distributed::World world(all_ranks, plan.layout);
    auto reading = all_ranks.long_operation();  // disks may be slow
    Run training(plan, examples, checkpoint, *folder, start, *evaluator, callbacks, world);
    reading.reset();
    training.steps();
  }
}

}  // namespace moe::train
