#include "core/train/trainer.h"

#include <chrono>
#include <cmath>

#include "core/base/error.h"
#include "core/io/tokenizer.h"
#include "core/model/weights.h"
#include "core/train/coefficients.h"
#include "core/train/gradients.h"
#include "core/train/optimizer.h"
#include "core/train/run_folder.h"

namespace moe::train {

namespace {

data::Examples read_data(const TrainSettings& settings,
                         const io::Checkpoint& checkpoint,
                         int64_t vocab_size) {
  const auto codec = [&] {
    const auto tokenizer =
        std::make_shared<io::Tokenizer>(io::Tokenizer::load(checkpoint.folder(), vocab_size));
    return data::TextCodec{[tokenizer](std::string_view text) { return tokenizer->encode(text); },
                           tokenizer->bos_id(),
                           tokenizer->eos_id()};
  };
  return data::read_examples(settings.data, settings.objective, vocab_size, codec);
}

// Router, logical ranks and coefficients of the run, put into `plan`.
void plan_routing(RunPlan& plan, const model::ModelConfig& config) {
  TrainSettings& settings = plan.settings;
  plan.is_moe = config.moe.has_value();
  if (!plan.is_moe) {
    if (settings.router.any()) {
      throw UserError("--router, --cf and --ep-ranks: {} is a dense folder; upcycle it first",
                      settings.model.string());
    }
    refuse_coefficients(settings);
    return;
  }
  const model::MoeConfig& moe = *config.moe;
  const route::StoredRouter stored{moe.router, moe.ep_ranks, moe.experts, moe.gate_scale};
  const auto resolved =
      route::override_router(stored, settings.router, settings.force, route::Purpose::kTrain);
  plan.notes = resolved.notes;
  plan.routing = {resolved.router, resolved.ep_ranks};
  // Whatever the folder stores, settings.toml makes this router again.
  settings.router = {to_full_string(resolved.router), "", resolved.ep_ranks};
  settings.changes_gate = resolved.router.family == stored.router.family &&
                          resolved.router.gate_norm != stored.router.gate_norm;
  resolve_coefficients(settings, moe, resolved);
  plan.losses = losses_in_force(settings, resolved.router, moe.experts);
}

data::BatchSettings batch_settings(const TrainSettings& settings) {
  return {
      *settings.pack, settings.shuffle, *settings.seq_len, *settings.micro_batch, settings.seed};
}

// One run, from the first batch to RUN/final.
class Run {
 public:
  Run(const RunPlan& plan,
      const data::Examples& examples,
      const io::Checkpoint& parent,
      const RunFolder& folder,
      const TrainCallbacks& callbacks)
      : plan_(plan),
        parent_(parent),
        folder_(folder),
        callbacks_(callbacks),
        model_(model::Llama::load(parent)),
        batches_(examples, batch_settings(plan.settings)),
        optimizer_(model_.parameters(), plan.settings.adamw),
        metrics_(folder.metrics()) {
    const TrainSettings& settings = plan.settings;
    schedule_ = {
        settings.schedule, settings.lr, *settings.min_lr, settings.warmup, *settings.steps};
    if (plan.is_moe) {
      routing_ = plan.routing;
      lambda_ = settings.lambda.value_or(0);
    }
    model_.require_gradients();
  }

  void steps() {
    const int64_t steps = *plan_.settings.steps;
    while (done_ < steps) {
      if (callbacks_.stop_requested()) {
        interrupt();
      }
      const StepRecord record = step();
      metrics_.append(record);
      callbacks_.on_step(record);
      if (plan_.settings.save_every && done_ % *plan_.settings.save_every == 0) {
        save(folder_.checkpoint(done_));
      }
    }
    save(folder_.final_model());
    folder_.keep_newest(plan_.settings.keep);
  }

 private:
  bool is_relu() const { return routing_.router.family == route::Family::kRelu; }

  StepRecord step() {
    const auto start = std::chrono::steady_clock::now();
    const TrainSettings& settings = plan_.settings;
    std::vector<data::Batch> micro_batches;
    for (int64_t rows = 0; rows < *settings.global_batch; rows += *settings.micro_batch) {
      micro_batches.push_back(batches_.next());
    }
    const AuxCoefficients coefficients{
        settings.lb_coef.value_or(0), settings.entropy_coef.value_or(0), lambda_};
    optimizer_.clear_gradients();
    const StepLosses losses = add_gradients(model_, micro_batches, routing_, coefficients);
    const double norm = gradient_norm(model_.parameters());
    check_finite(losses.loss, norm);
    folder_.keep_newest(settings.keep);  // only now is the newest checkpoint known to be good
    clip_gradients(model_.parameters(), norm, settings.clip);
    StepRecord record = describe(losses, coefficients);
    record.grad_norm = norm;
    record.lr = schedule_.at(done_);
    optimizer_.step(record.lr);
    record.step = ++done_;
    record.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    record.tokens_per_second = static_cast<double>(record.tokens) / record.seconds;
    if (is_relu()) {
      update_lambda(losses.sparsity);
    }
    return record;
  }

  StepRecord describe(const StepLosses& losses, const AuxCoefficients& coefficients) {
    StepRecord record;
    record.loss = losses.loss;
    record.tokens = losses.tokens;
    record.target_tokens = losses.target_tokens;
    record.total_tokens = total_tokens_ += losses.tokens;
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
    if (is_relu()) {
      record.lambda = lambda_;
      record.sparsity = losses.sparsity;
    }
    return record;
  }

  // SPEC section 9: the weight of L1 rises while too many experts run, else it falls.
  void update_lambda(double sparsity) {
    const auto& router = routing_.router;
    const double target =
        1.0 - static_cast<double>(router.k) / static_cast<double>(model_.config().moe->experts);
    lambda_ = route::next_lambda(lambda_, sparsity, target, router.lambda_multiplier);
  }

  void check_finite(double loss, double norm) const {
    if (std::isfinite(loss) && std::isfinite(norm)) {
      return;
    }
    folder_.remove_checkpoint(done_);  // the weights that this step began with are no good
    const auto last = folder_.last_checkpoint();
    throw std::runtime_error(
        fmt::format("step {}: the {} is {}, the run stops; {}; a lower --lr, a --warmup or a lower "
                    "--clip may help",
                    done_ + 1,
                    std::isfinite(loss) ? "gradient norm" : "loss",
                    std::isfinite(loss) ? norm : loss,
                    last ? "the last good checkpoint is " + last->string()
                         : std::string("no checkpoint was saved before (--save-every)")));
  }

  void save(const std::filesystem::path& out) {
    std::filesystem::create_directories(out.parent_path());
    model::save_folder(model_, routing_, parent_, out, /*force=*/true, coefficients());
    callbacks_.on_saved(out);
  }

  // A loss that the router does not have is stored as off.
  model::LossCoefficients coefficients() const {
    return {plan_.settings.lb_coef.value_or(0),
            plan_.settings.entropy_coef.value_or(0),
            is_relu() ? std::optional(lambda_) : std::nullopt};
  }

  [[noreturn]] void interrupt() {
    if (done_ == 0) {
      throw Interrupted("stopped before the first step, nothing was saved");
    }
    const auto out = folder_.checkpoint(done_);
    if (!std::filesystem::exists(out)) {
      save(out);
    }
    throw Interrupted(fmt::format(
        "stopped after step {} of {}; saved {}", done_, *plan_.settings.steps, out.string()));
  }

  const RunPlan& plan_;
  const io::Checkpoint& parent_;
  const RunFolder& folder_;
  const TrainCallbacks& callbacks_;
  model::Llama model_;
  model::RoutingOptions routing_;
  data::BatchStream batches_;
  AdamW optimizer_;
  MetricsFile metrics_;
  Schedule schedule_;
  int64_t done_ = 0, total_tokens_ = 0;
  double lambda_ = 0;  // ReLU, SPEC section 9
};

// Every file of a run: settings, checkpoints that stand at once (one more than are kept), final.
void check_run_space(const RunPlan& plan, const io::Checkpoint& checkpoint) {
  uint64_t model_bytes = 0;
  for (const auto& tensor : checkpoint.tensors()) {
    model_bytes += static_cast<uint64_t>(tensor.bytes());
  }
  const uint64_t folders =
      1 + (plan.settings.save_every ? static_cast<uint64_t>(plan.settings.keep) + 1 : 0);
  io::check_space(plan.settings.run, folders * model_bytes);
}

}  // namespace

void train(const TrainSettings& settings, const TrainCallbacks& callbacks) {
  check_numbers(settings);
  const RunFolder folder(settings.run, settings.model, settings.force);
  const io::Checkpoint checkpoint(settings.model);
  const auto config = model::parse_config(checkpoint.config(), checkpoint.config_name());
  model::check_tensors(checkpoint, config);
  RunPlan plan;
  plan.settings = settings;
  plan_routing(plan, config);
  const data::Examples examples = read_data(settings, checkpoint, config.vocab_size);
  plan.settings = resolve(plan.settings, config, examples);
  const data::BatchStream batches(examples, batch_settings(plan.settings));
  if (!plan.settings.steps) {
    const double rows = *plan.settings.epochs * batches.rows_per_epoch();
    plan.settings.steps =
        static_cast<int64_t>(std::ceil(rows / static_cast<double>(*plan.settings.global_batch)));
    plan.settings.epochs.reset();
  }
  plan.examples = static_cast<int64_t>(examples.items.size());
  plan.tokens = examples.tokens();
  plan.parameters = model::count_parameters(config).total;
  check_run_space(plan, checkpoint);
  folder.begin(to_toml(plan.settings));
  callbacks.on_start(plan);
  Run(plan, examples, checkpoint, folder, callbacks).steps();
}

}  // namespace moe::train
