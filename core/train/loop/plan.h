#pragma once
// What a run will take of memory, from shapes alone: bytes by class and the peak to expect, before
// a weight is loaded. The peak is found by walking through a step: forward (what each layer keeps),
// the head, backward layer by layer (activations go, gradients come), the update, a checkpoint.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/available_memory.h"
#include "core/data/batches.h"
#include "core/data/token_cache.h"
#include "core/distributed/world.h"
#include "core/io/checkpoint.h"
#include "core/model/config/config.h"
#include "core/model/llama/llama.h"
#include "core/route/router_settings.h"
#include "core/train/config/settings.h"
#include "core/train/observe/evaluation.h"
#include "core/train/observe/metrics.h"

namespace moe::train {

// What a process takes of a GPU's memory before it loads anything: context, libraries, NCCL's
// buffers.
constexpr uint64_t kCudaProgram = uint64_t{1} << 30;

struct MemoryPlan {
  // All in bytes, of one process of a layout: the first, which holds the most. Of its GPU in a run
  // on GPUs.
  uint64_t program = 0;      // what the process takes before it loads anything
  uint64_t weights = 0;      // f32, adapters included; on a GPU in bf16 the copies of what trains
                             // besides (kernels/ops/bf16_working_copy.h)
  uint64_t gradients = 0;    // f32, of what trains
  uint64_t optimizer = 0;    // two moments of what this process updates
  uint64_t activations = 0;  // kept for backward, of one micro-batch
  uint64_t workspace = 0;    // what comes and goes, at the peak
  uint64_t checkpoint = 0;   // the copy that is written beside training; 0 without checkpoints,
                             // and of a GPU, whose copy lies in the host's memory
  uint64_t evaluation = 0;   // the whole model, gathered between steps to evaluate it; 0 where a
                             // process has all of it anyway, or nothing is evaluated
  uint64_t peak = 0;
};

// Of `settings` that are resolved, for micro-batches of `tokens` tokens, of which the places of an
// expert-parallel group have equal parts, and a process that takes `program` now. Routers without a
// capacity route as many rows as their text says; a top-p or ReLU router is taken as one that has
// learned nothing, which is when it routes most (README.md of core has the letters).
MemoryPlan plan_memory(const model::ModelConfig& config, const TrainSettings& settings,
                       const route::RouterSettings& router, int64_t tokens, uint64_t program,
                       const distributed::Layout& layout = {});

// Rows that a layer of experts routes of `tokens` tokens, as above.
int64_t routed_rows(const route::RouterSettings& router, int64_t tokens, int64_t experts);

// Settings that are known to fail, a sentence each, said before the first step: nothing else would
// tell, because such a run has a falling loss like any other.

// Above, a share of requests that is refused by chance alone is worth a warning: 8 experts at CF =
// k = 1 refuse 3.3 % of 1,024 tokens a rank so, 4.7 % of 512 and 9.3 % of 128.
inline constexpr double kMostRefusedByChance = 0.04;

// A schedule usually ends at a tenth of its highest rate: more than ten times a parent's last
// learning rate is more than the parent was ever trained with.
inline constexpr double kMostRateRatio = 10;

// Whether the loss of the task reaches the logits at all (core/route/README.md, "Gradients"): not
// where a token has one expert, its weight is 1 whatever the logits are, and the gradient is that
// of this weight. Of one expert in all there is nothing to learn: true.
bool router_learns_from_task(const route::RouterSettings& router, int64_t experts);

// The share of first-k requests that capacity refuses when every token asks for k of the E experts
// evenly at random: an expert then has X ~ Binomial(T_r, k / E) requests of a rank with T_r tokens
// and C_r slots, and E[(X - C_r)+] E / (k T_r) of all are refused. 0 for routers that refuse none.
double share_refused_by_chance(const route::RouterSettings& router, int64_t rank_tokens,
                               int64_t experts);

// What is known of a run before it begins.
struct StartingPoint {
  std::optional<route::RouterSettings> router;  // of a mixture
  int64_t experts = 1;
  int64_t rank_tokens = 0;        // T_r of the largest micro-batch
  bool trains_router = true;      // not where --train names other parameters
  bool balance_loss = false;      // the load-balance loss has a coefficient above 0
  bool other_loss = false;        // another one has: z-loss, balance within sequences
  double lr = 0;                  // the highest of the run
  std::optional<double> last_lr;  // of the run that left the model, where that is known
};

std::vector<std::string> known_failures(const StartingPoint& start);

// Of resolved settings: `router` on W = `ep_ranks` logical ranks of a mixture, micro-batches of up
// to `group_tokens` tokens.
StartingPoint starting_point(const TrainSettings& settings, const model::ModelConfig& config,
                             const route::RouterSettings& router, int64_t ep_ranks,
                             int64_t group_tokens);

// A run before its first step: settings, data and model checked and closed, and what is said of
// them at the start.

// What is known before the first step.
struct RunPlan {
  TrainSettings settings;            // resolved, steps included
  int64_t examples = 0, tokens = 0;  // of the data
  std::vector<std::string> data;     // a line for each file: what it was recognised as
  int64_t parameters = 0;
  bool is_moe = false;
  model::RoutingOptions routing;   // of a mixture
  std::string losses;              // of a mixture: what is minimised, in words
  distributed::Layout layout;      // of the processes
  std::vector<std::string> notes;  // warnings worth a line
  int64_t group_tokens = 0;        // of the largest micro-batch: what is routed together
  MemoryPlan memory;
  int64_t first_step = 0;  // steps done before: 0, or those of the checkpoint it goes on from
};

struct TrainCallbacks {
  // While the data are read, often: examples and tokens so far.
  std::function<void(int64_t, int64_t)> on_reading = [](int64_t, int64_t) {};
  std::function<void(const RunPlan&)> on_start = [](const RunPlan&) {};
  std::function<void(const StepRecord&)> on_step = [](const StepRecord&) {};
  std::function<void(const std::filesystem::path&)> on_saved = [](const std::filesystem::path&) {};
  std::function<void(const Evaluation&)> on_evaluated = [](const Evaluation&) {};
  EvaluateTasks evaluate_tasks = {};  // needed where the settings name tasks
  int64_t profiled_steps = 0;         // the first ones of this process go to RUN/trace.json
  std::function<bool()> stop_requested = [] { return false; };  // polled between steps
  // Called when the writing of a checkpoint begins (true) and ends (false), from any thread; may
  // nest.
  std::function<void(bool)> on_saving = [](bool) {};
};

// What a run is made of, before anything of it is written.
struct Prepared {
  io::Checkpoint checkpoint;
  data::Examples examples;
  RunPlan plan;
  std::optional<Evaluator> evaluator;  // always there when it is done
};

// UserError: what check_numbers, the readers and held_out.h say, --router on a dense folder.
// Interrupted: stop_requested said so while the data were read.
// `rank` of `processes` is this process; they open their data with what is `shared`.
Prepared prepare(const TrainSettings& settings, const TrainCallbacks& callbacks,
                 int64_t processes = 1, int64_t rank = 0, data::HostTokens* shared = nullptr);

// UserError where the replicas of `layout` cannot take the same number of a step's micro-batches.
void check_batches(const TrainSettings& settings, const distributed::Layout& layout);

data::BatchSettings batch_settings(const TrainSettings& settings);  // of resolved ones

// What a process of the run needs of the host's memory above what it has; nothing in a run on GPUs.
// Its `processes` is 1.
MemoryNeed memory_need(const RunPlan& plan);

// Everything up to the first weight: settings, data and model are checked as train() does, and no
// run is begun. Of rank 0 of `processes`, taken to share this host: a note says where its memory is
// short.
RunPlan plan_run(const TrainSettings& settings, int64_t processes = 1);

// Memory plan of a run on a cluster, for --dry-run with --nodes and --gpus. Only the config is
// read.

struct ClusterPlan {
  TrainSettings settings;  // resolved
  route::RouterSettings router;
  distributed::Layout layout;
  MemoryPlan memory;               // of one GPU
  int64_t parameters = 0;          // of the model
  std::vector<std::string> notes;  // warnings of known_failures()
};

// Plans `settings` on `nodes` machines with `gpus` GPUs each. settings.model is a folder or a
// config.json; a dense one is planned as the mixture of settings.upcycle. Throws UserError if a
// count is not positive, or if the config, mixture, router or layout are invalid.
ClusterPlan plan_cluster(const TrainSettings& settings, int64_t nodes, int64_t gpus);

}  // namespace moe::train
