#pragma once
// The learning rate of every step in closed form: nothing to save, nothing to resume.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/data/batches.h"
#include "core/io/tensor_info.h"
#include "core/model/config/config.h"
#include "core/model/convert/upcycle_request.h"
#include "core/model/llama/compute.h"
#include "core/model/llama/lora.h"
#include "core/route/router_override.h"

namespace moe::train {

enum class ScheduleKind { kCosine, kLinear, kConstant, kWsd };

ScheduleKind parse_schedule(const std::string& name);  // UserError listing the known names
const char* schedule_name(ScheduleKind kind);

struct Schedule {
  ScheduleKind kind = ScheduleKind::kCosine;
  double lr = 1e-5;             // highest; of Rectify-Router, as is min_lr
  double min_lr = 1e-6;         // of the last step; kConstant never falls
  int64_t warmup = 0;           // steps that rise linearly to lr, the first being lr / warmup
  int64_t steps = 1;            // of the whole run
  double decay_fraction = 0.1;  // kWsd: the last part of the run, which falls linearly (MiniCPM
                                // 2024, section 4.3: 10 %)

  // Of step 0 .. steps-1. The first step after the warm-up has `lr`, the last step has `min_lr`
  // (where it falls at all).
  double at(int64_t step) const;
};

// Evaluation while a run trains: what is evaluated and when. It changes nothing of the training.

struct EvaluationSettings {
  std::vector<std::filesystem::path> data;  // held-out files, read as the run reads its data
  std::optional<int64_t> rows;              // of them, the first ones; open: 64; 0 = all
  std::optional<int64_t> every;             // steps; open: a tenth of the run
  std::vector<std::string> tasks;           // benchmarks by name or file, as moe eval knows them
  std::filesystem::path tasks_folder;       // of their files
  std::optional<int64_t> tasks_limit;       // questions of each task; open: all

  bool any() const { return !data.empty() || !tasks.empty(); }
};

// UserError names the flag: numbers that cannot be, flags whose --eval-data or --eval-tasks is
// missing, a file with a weight.
void check_evaluation(const EvaluationSettings& settings);

// Closes what is open, for a run of `steps`.
EvaluationSettings resolve_evaluation(EvaluationSettings settings, int64_t steps);

// Before the first step (0), after every `every`-th and after the last.
bool is_evaluation_due(const EvaluationSettings& settings, int64_t step, int64_t steps);

// Everything a run of training is told, with defaults and where they come from. What depends on the
// model or the data stays open until resolve(); a resolved set goes to RUN/settings.toml and makes
// the same run again.

// What processes that hold the same parameters share out among them, rank_shards.h: the moments and
// the update, or dense matrices and their gradients too (core/model/llama/weight_shards.h).
enum class Shard { kOptimizer, kWeights };

// Defaults: ../README.md.
struct AdamWSettings {
  double weight_decay = 0.0;
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  bool decay_embeddings = true;         // embedding and head too; never norms and biases
  io::DType moments = io::DType::kF32;  // of the two moments, F32 or BF16
};

struct TrainSettings {
  std::filesystem::path model;              // the folder to start from
  std::filesystem::path run;                // RUN
  std::vector<std::filesystem::path> data;  // words of --data: core/data/sources.h
  std::optional<data::Format> format;       // open: told from each file's first record
  std::string text_template = "paper";      // [instruct][response]; core/data/templates.h; or
                                            // "auto", until the model's folder is open
  data::LossOn loss_on = data::LossOn::kAll;
  std::string cache;  // of tokens: a folder, "off", or open; core/data/token_cache.h

  std::optional<int64_t> steps;    // or
  std::optional<double> epochs;    // rounded up to whole steps; neither: 1 epoch
  std::optional<int64_t> seq_len;  // open: 2048 (the paper), at most what the model was made for
  std::optional<int64_t> micro_batch;   // rows a forward pass; open: 8 (the paper), or the largest
                                        // divisor of global_batch below
  std::optional<int64_t> global_batch;  // rows a step; open: micro_batch (the paper: 256)
  data::Objective objective = data::Objective::kInstruct;
  std::optional<data::Pack> pack;  // open: stream; none where all examples are pre-tokenised rows
  data::PackMask pack_mask = data::PackMask::kCausal;
  bool shuffle = true;

  model::ComputeOptions compute;     // f32, nothing computed again
  model::LoraSettings lora;          // none
  std::vector<std::string> trained;  // what trains, trainable.h; empty: everything, with adapters
                                     // those and the router
  ScheduleKind schedule = ScheduleKind::kCosine;
  double lr = 1e-5;              // of the paper
  std::optional<double> min_lr;  // open: lr / 10 (the paper: 1e-5 -> 1e-6)
  int64_t warmup = 0;            // steps; this and the next two: ../README.md
  AdamWSettings adamw;
  double clip = 1.0;                    // 0 = never
  std::optional<double> skip_outliers;  // standard deviations, outliers.h; open: none are skipped

  model::UpcycleRequest upcycle;  // a dense model is taken as a mixture
  route::RouterRequest router;    // open: the folder's
  std::optional<double>
      lb_coef;  // open: the folder's, or the router's default where that was replaced
  std::optional<double> entropy_coef;
  std::optional<double> z_coef, seq_lb_coef;  // open: the folder's
  std::optional<double> lambda;               // ReLU's, of the first step; open: see coefficients.h

  EvaluationSettings evaluation;

  std::optional<int64_t> save_every;   // steps; open: only the end
  std::optional<double> save_minutes;  // minutes between checkpoints, besides
  int64_t keep = 2;                    // newest checkpoints that stay
  int64_t keep_every = 0;              // those of steps that it divides stay too; 0 = none
  uint64_t seed = 0;
  int threads = 0;                  // 0 = LibTorch's choice; recorded only
  bool on_cuda = false;             // the run's ranks have GPUs; for checks and the record
  std::optional<int64_t> replicas;  // of the experts, core/distributed/world.h; changes no number
  Shard shard = Shard::kOptimizer;
  bool force = false;
  bool force_memory = false;  // begin although memory will be short
  bool changes_gate = false;  // --force let the router change the folder's gate; told by train()
};

// Closes what is open but for router and steps (they need model and data) and checks every number.
// UserError names the flag.
TrainSettings resolve(TrainSettings settings, const model::ModelConfig& config,
                      const data::Examples& examples);

// UserError names the flag for numbers that no run can have; resolve() calls it, call it before
// reading large files.
void check_numbers(const TrainSettings& settings);

// The run as a recipe: a [train] table whose keys are the flags.
std::string to_toml(const TrainSettings& settings);

}  // namespace moe::train
