#pragma once
// Settings of a training run, with defaults and their sources. Settings that depend on the model or
// the data are unset until resolve() fills them. Resolved settings, written to RUN/settings.toml,
// reproduce the run. Flags, recipe keys and ranges follow from one table, train_options().

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/base/option.h"
#include "core/data/batches.h"
#include "core/data/examples.h"
#include "core/io/safetensors.h"
#include "core/model/config/compute.h"
#include "core/model/config/config.h"
#include "core/route/router_override.h"
#include "core/upcycle/upcycle_request.h"

namespace moe::train {

enum class ScheduleKind { kCosine, kLinear, kConstant, kWsd };

// Evaluation during training. It does not change the training.
struct EvaluationSettings {
  std::vector<std::filesystem::path> data;  // held-out files, in the formats of the training data
  std::optional<int64_t> rows;              // use only the first rows; 0 = all; unset: 64
  std::optional<int64_t> every;             // steps; unset: a tenth of the run
  std::vector<std::string> tasks;           // benchmarks by name or file, as in moe eval
  std::filesystem::path tasks_folder;       // folder of their files
  std::optional<int64_t> tasks_limit;       // questions per task; unset: all

  bool any() const { return !data.empty() || !tasks.empty(); }
  // Returns true before the first step (0), after every `every`-th and the last. Requires `every`.
  bool is_due(int64_t step, int64_t steps) const {
    return any() && (step % every.value() == 0 || step == steps);
  }
};

// Sharded state: AdamW's moments and the update (step/optimizer.h), or dense matrices and their
// gradients too (core/model/llama/weight_shards.h).
enum class Shard { kOptimizer, kWeights };

// Defaults: ../README.md.
struct AdamWSettings {
  double weight_decay = 0.0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  bool decay_embeddings = true;         // embedding and head; norms and biases are never decayed
  io::DType moments = io::DType::kF32;  // F32 or BF16
};

struct TrainSettings {
  std::filesystem::path model;              // the folder to start from
  std::filesystem::path run;                // RUN
  std::vector<std::filesystem::path> data;  // values of --data (core/data/sources.h)
  std::optional<data::Format> format;       // unset: detected from the first record of each file
  std::string text_template = "auto";       // argument of data::Template::parse()
  std::string template_arguments;           // JSON object for a chat template; "": none
  std::string template_date;                // YYYY-MM-DD; "": today
  std::string add_tokens;                   // for io::split_tokens(), or "auto"; "": none
  data::LossOn loss_on = data::LossOn::kAll;
  std::string columns;  // as data::parse_columns() takes it
  data::BadRecords bad_records = data::BadRecords::kError;
  data::Overlong overlong = data::Overlong::kError;  // examples longer than seq_len
  std::string cache;  // token cache: a folder, "off", or "" for the default (token_cache.h)

  std::optional<int64_t> steps;
  std::optional<double> epochs;    // instead of steps, rounded up to whole steps; both unset: 1
  std::optional<int64_t> seq_len;  // unset: 2048 (the paper), at most the model's maximum
  // Rows of a forward pass; unset: 8 (the paper), or the largest smaller divisor of global_batch.
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> global_batch;  // rows of a step; unset: micro_batch (the paper: 256)
  data::Objective objective = data::Objective::kInstruct;
  std::optional<data::Pack> pack;  // unset: kStream; kNone if all examples are token rows
  data::PackMask pack_mask = data::PackMask::kCausal;
  bool shuffle = true;

  model::ComputeOptions compute;     // default: f32, no recomputation
  model::LoraSettings lora;          // default: none
  std::vector<std::string> trained;  // values of --train (step/optimizer.h)
  ScheduleKind schedule = ScheduleKind::kCosine;
  double lr = 1e-5;              // maximum (the paper: Rectify-Router)
  std::optional<double> min_lr;  // unset: lr / 10 (the paper: 1e-5 -> 1e-6)
  int64_t warmup = 0;            // steps
  AdamWSettings adamw;
  double clip = 1.0;                    // maximum gradient norm; 0 = no clipping
  std::optional<double> skip_outliers;  // standard deviations (step/optimizer.h); unset: off

  model::UpcycleRequest upcycle;  // upcycles a dense model when it is opened
  route::RouterRequest router;    // unset: the folder's
  // Coefficients of auxiliary losses; unset: see resolve_coefficients().
  std::optional<double> lb_coef, entropy_coef, z_coef, seq_lb_coef;
  std::optional<double> lambda;  // ReLU: weight of the L1 loss in the first step
  route::LossGroup lb_group = route::LossGroup::kRank;

  EvaluationSettings evaluation;

  std::optional<int64_t> save_every;   // steps between checkpoints; unset: only the final model
  std::optional<double> save_minutes;  // minutes between checkpoints, in addition
  int64_t keep = 2;                    // number of newest checkpoints to keep
  int64_t keep_every = 0;              // also keep checkpoints whose step is a multiple; 0 = none
  int64_t seed = 0;
  int threads = 0;                  // set by the caller; 0 = LibTorch's default
  bool on_cuda = false;             // each rank has a GPU
  std::optional<int64_t> replicas;  // of the experts (core/distributed/comm.h); same results
  Shard shard = Shard::kOptimizer;
  bool force = false;
  bool force_memory = false;  // start even if memory is short
  bool changes_gate = false;  // set by prepare(): --force let the router change the folder's gate
};

// Returns the learning rate of step 0 .. steps-1 of the whole run, in closed form: it has no state
// to save. It rises linearly during the warm-up, to `lr`, and falls to `min_lr` in the last step
// (not with kConstant). Requires resolved settings with `steps`.
double learning_rate(const TrainSettings& settings, int64_t step);

// Fills unset settings, except router, coefficients, steps and evaluation. Throws UserError.
TrainSettings resolve(TrainSettings settings, const model::ModelConfig& config,
                      const data::Examples& examples);

EvaluationSettings resolve_evaluation(EvaluationSettings settings, int64_t steps);

// Throws UserError, naming the flag, for settings that are invalid for every model and data.
void check_numbers(const TrainSettings& settings);

// Returns the template of --template; for "auto", that of the model folder. Throws UserError.
data::Template parse_template(const TrainSettings& settings);

// Returns all options of a run, in the order of settings.toml. `settings` must outlive them.
Options train_options(TrainSettings& settings);
// Returns the options that determine the tokens of a record.
Options record_options(TrainSettings& settings);
// Adds an option to train_options(). Its member is a variable of the caller that outlives all runs.
// Call it before other functions of the library.
void add_train_option(const Option& option);

// Returns the settings as a recipe: a [train] table whose keys are the flags.
std::string to_toml(const TrainSettings& settings);

// Returns the [train] table of a settings.toml; equal values have equal texts. Throws UserError,
// prefixed with `where`, if `toml` is not TOML or has no such table.
std::map<std::string, std::string> read_settings(const std::string& toml, const std::string& where);

// Fills the coefficients and lambda of `settings` for the router of the run. A coefficient is the
// flag's, else the folder's if its router is of the same family, else the default (z_coef and
// seq_lb_coef: 0). Lambda is the flag's, else lambda0 if --router names it, else the
// folder's, else lambda0. Throws UserError for a coefficient of a loss that the router lacks.
void resolve_coefficients(TrainSettings& settings, const model::MoeConfig& stored,
                          const route::ResolvedRouter& resolved);

// Throws UserError if any coefficient is set, for a dense model.
void refuse_coefficients(const TrainSettings& settings);

// Returns "language model + 0.01 x load balance (of first choices)" for resolved settings. If
// `router_trains` is false, lambda and bias are described as constant.
std::string describe_losses(const TrainSettings& settings, const route::RouterSettings& router,
                            int64_t experts, bool router_trains = true);

}  // namespace moe::train
