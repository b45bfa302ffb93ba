#pragma once
// A training run. prepare() resolves settings, data, model, layout and memory, and collects
// warnings about settings that are known to fail; it writes no file. begin_run() opens the run
// folder: rank 0 determines whether the run is new, resumed or complete, and broadcasts the result.
// train() calls both and then runs the loop: batches -> gradients -> clipping -> AdamW -> metrics.
// On the CPU, runs with equal settings and an equal number of threads are equal bit for bit.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/resources.h"
#include "core/distributed/comm.h"
#include "core/io/checkpoint.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "core/train/checkpoint/run_folder.h"
#include "core/train/config/settings.h"
#include "core/train/observe/evaluation.h"
#include "core/train/observe/metrics.h"

namespace moe::train {

// Memory of a run in bytes: GPU memory if the run uses GPUs, else host memory. The values are those
// of the first process of a layout, which needs the most.
struct MemoryPlan {
  uint64_t program = 0;      // before anything is loaded
  uint64_t weights = 0;      // f32, adapters included; and the bf16 copies of a GPU
  uint64_t gradients = 0;    // f32, of the parameters that train
  uint64_t optimizer = 0;    // two moments of the elements that this process updates
  uint64_t activations = 0;  // kept for backward, of one micro-batch
  uint64_t workspace = 0;    // temporary memory at the peak
  uint64_t checkpoint = 0;   // copy written in the background; 0 on a GPU (it is in host memory)
  uint64_t evaluation = 0;   // the model gathered for an evaluation; 0 if no model is gathered
  uint64_t peak = 0;
};

// Computes the plan by a simulation of forward, head, backward, update and checkpoint. Requires
// resolved `settings`. `tokens` is the number of tokens of a micro-batch, which the ranks of an
// expert-parallel group divide equally. `program`: current memory of the process in bytes.
MemoryPlan plan_memory(const model::ModelConfig& config, const TrainSettings& settings,
                       const route::RouterSettings& router, int64_t tokens, uint64_t program,
                       const distributed::Layout& layout = {});

// Ratio of the learning rate to the parent's last one above which known_failures() warns: schedules
// usually end at a tenth of their maximum.
inline constexpr double kMaxLrRatio = 10;

// Returns true if the task loss has a gradient with respect to the logits (core/route/README.md,
// "Gradients"). It has none if a token has one of several experts and that expert's gate weight is
// always 1.
bool router_learns_from_task(const route::RouterSettings& router, int64_t experts);

// Returns the expected share of first-k requests that capacity refuses if each token requests k of
// the E experts uniformly at random: E[(X - C_r)+] E / (k T_r), X ~ Binomial(T_r, k / E), for a
// rank with T_r tokens and C_r slots. 0 for routers without a capacity.
double chance_refusal_share(const route::RouterSettings& router, int64_t rank_tokens,
                            int64_t experts);

// Facts about a run that known_failures() checks.
struct RunFacts {
  std::optional<route::RouterSettings> router;  // of a mixture
  int64_t experts = 1;
  int64_t rank_tokens = 0;        // T_r of the largest micro-batch
  bool trains_router = true;      // false if --train excludes the router
  bool balance_loss = false;      // true if the load-balance loss has a coefficient above 0
  bool other_loss = false;        // true if the z-loss or the balance within sequences has one
  double lr = 0;                  // maximum of the run
  std::optional<double> last_lr;  // of the run that made the model, if known
};

// Returns a warning for each setting that is known to fail although the loss decreases.
std::vector<std::string> known_failures(const RunFacts& facts);

struct RunPlan {
  TrainSettings settings;                         // resolved, steps included
  int64_t examples = 0, tokens = 0;               // of the data
  std::vector<std::string> data;                  // a line per file with its detected form
  std::map<std::string, std::string> chat_files;  // of final/, by name; set on rank 0
  int64_t parameters = 0;
  bool is_moe = false;
  model::RoutingOptions routing;   // of a mixture
  std::string losses;              // of a mixture: describe_losses()
  distributed::Layout layout;      // of the processes
  std::vector<std::string> notes;  // printed at the start, one per line
  int64_t group_tokens = 0;        // tokens of the largest micro-batch; they are routed together
  MemoryPlan memory;
  int64_t first_step = 0;  // number of steps done before this start
};

struct TrainCallbacks {
  // Called often while data is read, with the numbers of examples and tokens so far.
  std::function<void(int64_t, int64_t)> on_reading = [](int64_t, int64_t) {};
  std::function<void(const RunPlan&)> on_start = [](const RunPlan&) {};
  std::function<void(const StepRecord&)> on_step = [](const StepRecord&) {};
  // Called on rank 0 with a sentence about the last steps.
  std::function<void(const std::string&)> on_warning = [](const std::string&) {};
  std::function<void(const std::filesystem::path&)> on_saved = [](const std::filesystem::path&) {};
  std::function<void(const Evaluation&)> on_evaluated = [](const Evaluation&) {};
  EvaluateTasks evaluate_tasks = {};  // required if the settings name tasks
  int64_t profiled_steps = 0;         // number of first steps that are traced to RUN/trace.json
  std::function<bool()> stop_requested = [] { return false; };  // polled between steps
  // Called before (true) and after (false) a checkpoint is written, on any thread; may nest.
  std::function<void(bool)> on_saving = [](bool) {};
};

// Inputs of a run, before any of its files is written.
struct Prepared {
  io::Checkpoint checkpoint;
  data::Examples examples = {};
  RunPlan plan = {};
  std::optional<Evaluator> evaluator = {};  // set by prepare()
};

// Opens and checks the model and the data of a run. Collective: ranks of a host share the tokens.
// Throws UserError if these are invalid or differ; Interrupted if stop_requested() returned true.
Prepared prepare(const TrainSettings& settings, const TrainCallbacks& callbacks,
                 distributed::Comm& ranks);

// Returns the host memory that one process needs in addition to its current memory; none on GPUs.
MemoryNeed memory_need(const RunPlan& plan);

// Returns the plan of rank 0 of `processes` on this host without starting a run. Adds a note if
// memory is short. Throws the exceptions of prepare().
RunPlan plan_run(const TrainSettings& settings, int64_t processes = 1);

// Plans the memory of one GPU of `nodes` machines with `gpus` GPUs each, from the config alone.
// settings.model is a folder or a config.json; a dense one is planned as the mixture of
// settings.upcycle. Throws UserError if a count, the config, mixture, router or layout is invalid.
RunPlan plan_cluster(const TrainSettings& settings, int64_t nodes, int64_t gpus);

struct ResumePlan {
  std::filesystem::path folder;     // of the initial weights
  bool resumed = false;             // `folder` is a checkpoint of this run
  bool is_done = false;             // the run is complete
  std::unique_ptr<MetricsLog> log;  // of rank 0, unless complete; refers to the RunFolder
};

// Checks memory and disk space and begins RUN: settings.toml, inputs.json, a line of starts.jsonl,
// and the log. Sets plan.first_step and adds notes to the plan. Collective. Throws UserError if
// memory or disk space is short, if an existing run has other settings, or if all its checkpoints
// are damaged.
ResumePlan begin_run(RunFolder& folder, RunPlan& plan, const io::Checkpoint& checkpoint,
                     distributed::Comm& ranks);

// Returns the bytes of a checkpoint: a model folder, and f32 weight and two moments per parameter.
uint64_t checkpoint_bytes(const io::Checkpoint& checkpoint, const RunPlan& plan);

// Trains and writes RUN/final. Resumes an existing run with the same settings from its newest
// intact checkpoint; on the CPU the result equals that of an uninterrupted run bit for bit. A
// complete run is left unchanged (on_start is called, no step is run). `ranks` is null for a single
// process; otherwise each rank calls train() with the same settings, and rank 0 writes RUN.
//
// Throws UserError, before any file is written, if an input is invalid; std::runtime_error if
// several losses or gradients in a row are not finite, naming the step and the last good one;
// Interrupted if stop_requested() returned true, after saving a checkpoint.
void train(const TrainSettings& settings, const TrainCallbacks& callbacks,
           distributed::Comm* ranks = nullptr);

}  // namespace moe::train
