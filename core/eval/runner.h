#pragma once
// The model under evaluation: the settings of `moe eval`, the opened model folder (OpenedModel),
// and the loaded model (Runner). Most user errors are detected before the weights are loaded.

#include <c10/core/Device.h>

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/resources.h"
#include "core/eval/report/routing_stats.h"
#include "core/eval/report/task_report.h"
#include "core/eval/scoring/generate_until.h"
#include "core/model/config/compute.h"
#include "core/route/router_override.h"
#include "core/upcycle/upcycle_request.h"

namespace moe::eval {

struct EvalSettings {
  std::filesystem::path model;
  model::UpcycleRequest upcycle = {};
  std::vector<std::string> tasks;  // names of tasks and groups, or files (tasks.h)
  std::filesystem::path data;      // --data: folder of the benchmarks' files
  std::filesystem::path out;       // folder for results; empty: none are written
  bool force = false;              // replace files in `out`; allow a change of gate
  bool force_memory = false;       // load the model even if memory is short
  std::optional<int64_t> limit;    // questions per task
  Bos bos = Bos::kAuto;
  int64_t batch_tokens = 0;     // 0: auto_batch_tokens()
  int64_t group_tokens = 4096;  // tokens of a routing group, per logical rank
  route::RouterRequest router;
  std::filesystem::path stats;         // statistics file of a mixture's routing; empty: none
  StatsBy stats_by;                    // groupings in the statistics file
  Compat compat = Compat::kCurrent;    // version of the harness to reproduce
  std::optional<int64_t> shots = {};   // --num-fewshot; empty: each task's default
  std::filesystem::path against = {};  // --against: folder of another run; empty: none
  // Response cache: a file, a folder for responses.cache, or "off". Empty: responses.cache in
  // `out`, removed after a complete run; no cache if `out` is empty too.
  std::string cache_responses = {};
  // The ranks that share the work; null: a single process. Evaluation is then collective: all ranks
  // pass the same settings and get the same results. Rank 0 writes the files.
  distributed::Comm* ranks = nullptr;
  c10::Device device = c10::kCPU;
  model::Precision precision = model::Precision::kF32;  // of matrix products

  bool is_rank_zero() const { return ranks == nullptr || ranks->rank() == 0; }
};

// Returns the input files of an evaluation, which its output must not replace: the model's, users'
// task files, and those of the run in `against`.
std::vector<std::filesystem::path> input_files(const EvalSettings& settings);

// Returns the name of the precision in results.json: "float32", "bfloat16" or "tf32".
std::string dtype_name(model::Precision precision);

// Callbacks of an evaluation. Only `running` may be empty.
struct EvalEvents {
  std::function<void(const std::string&)> note = [](const std::string&) {};  // for the user
  // A task begins, with this number of requests or prompts.
  std::function<void(const std::string& what, int64_t requests)> start = [](const std::string&,
                                                                            int64_t) {};
  // Requests or prompts completed since `start`.
  std::function<void(int64_t done)> progress = [](int64_t) {};
  // Requests or prompts since `start` that the response cache had. Called before `progress`.
  std::function<void(int64_t requests)> cached = [](int64_t) {};
  // Mean of a task's main metric over the questions answered so far; may be empty.
  RunningAccuracy::Callback running = {};
  // Called after each forward pass and each generated answer. If it returns true, the run throws
  // Interrupted, whose message says how to resume.
  std::function<bool()> stop_requested = [] { return false; };
};

// An opened model folder, without the weights in memory.
struct OpenedModel {
  io::Checkpoint checkpoint;
  model::ModelConfig config;
  io::Tokenizer tokenizer;
  route::ResolvedRouter routing;
  bool adds_bos = false;
};

// Opens settings.model. Throws UserError if the folder, the router, --bos or --stats is invalid.
// Sends notes to `events`.
OpenedModel open_model(const EvalSettings& settings, const EvalEvents& events);

// Returns the folder's router, overridden by `request`. Throws UserError as override_router() does,
// and for a request to a dense model.
route::ResolvedRouter resolve_router(const model::ModelConfig& config,
                                     const route::RouterRequest& request, bool force);

// Returns the text encoder with the BOS and empty-context rules of that version of the harness.
// `opened` must outlive it.
TextEncoder make_encoder(const OpenedModel& opened, Compat compat);

// Path of the response cache.
struct ResponseFile {
  std::filesystem::path file;
  bool is_temporary = false;  // removed after a complete run
};
std::optional<ResponseFile> response_file(const EvalSettings& settings);  // nullopt: no cache

// Returns the maximum number of tokens of a routing group, over all logical ranks; 0 if scores do
// not depend on groups.
int64_t group_tokens(const EvalSettings& settings, const OpenedModel& opened);

// The largest forward passes of a run, for the memory check before the model is loaded.
struct RequestSizes {
  int64_t forward_tokens = 0;  // of the largest forward pass that scores requests
  int64_t prompt_tokens = 0;   // of the longest prompt of a generation task; 0: none
  int64_t answer_tokens = 0;   // maximum length of an answer
};

// Returns the sizes of a run over `requests`.
RequestSizes request_sizes(const EvalSettings& settings, const OpenedModel& opened,
                           const std::vector<Request>& requests);
// Overload for tasks that are not encoded yet. Encodes small tasks. Of a large task it encodes only
// the longest questions and assumes a forward pass of forward_limit() tokens.
RequestSizes request_sizes(const EvalSettings& settings, const OpenedModel& opened,
                           const std::vector<LoadedTask>& tasks);

// Estimates the host memory that loading and running the model adds to the current use.
MemoryNeed memory_need(const EvalSettings& settings, const OpenedModel& opened,
                       const RequestSizes& sizes);

// Scores requests, generates answers, and collects routing statistics.
class Runner {
 public:
  // Loads the model. `settings`, `opened` and `events` must outlive the runner. Throws UserError if
  // memory is short on any rank, unless settings.force_memory is set.
  Runner(const EvalSettings& settings, const OpenedModel& opened, const EvalEvents& events,
         const RequestSizes& sizes);
  Runner(const Runner&) = delete;

  // Applies the current routing of the opened model and resets all statistics. `label` is prepended
  // to the names of tasks in progress and in messages.
  void restart(const std::string& label = "");

  // Scores `requests`. `what` is their name in progress and statistics. `loaded` is their task, for
  // events.running; may be null.
  Scores run(const std::string& what, const std::vector<Request>& requests,
             const LoadedTask* loaded = nullptr);
  // Returns one answer per prompt (generate_until.h). Routing is not counted.
  std::vector<std::string> generate(const LoadedTask& loaded,
                                    const std::vector<std::vector<int64_t>>& prompts);
  // Returns the routing statistics since restart(); nullopt for a dense model. Rank 0 writes them
  // to `file` if it is not empty.
  std::optional<RoutingStats> finish(const std::filesystem::path& file);
  // Removes a temporary response cache. Call after all results are on disk.
  void remove_temporary_cache();

 private:
  void open_cache();
  void answer(const Generation& generation, const std::vector<std::vector<int64_t>>& prompts,
              const std::vector<size_t>& indices, const OnAnswer& done);
  void start(const std::string& what, int64_t requests);
  void progress(int64_t done);

  const EvalSettings& all_settings_;
  const OpenedModel& opened_;
  const EvalEvents& events_;
  model::Llama llama_;
  ScoreSettings settings_;
  std::optional<RoutingStats> stats_;
  std::optional<TokenTally> tally_;
  std::optional<ResponseFile> response_file_;
  std::optional<ResponseCache> cache_;
  std::string label_, what_;  // of the current run
  int64_t requests_ = 0, cached_before_ = 0;
};

// A task as tokens.
struct EncodedTask {
  // To score; of a generation task: right_answers(), if routing is counted.
  std::vector<Request> requests;
  std::vector<std::vector<int64_t>> prompts;  // to answer; for a generation task only
};

// Throws UserError if a question has no token to score, or if the longest answer of a generation
// task does not fit into the window.
EncodedTask encode_task(const TextEncoder& encoder, const LoadedTask& loaded,
                        bool counts_routing = false);

// Returns the questions of a generation task with their right answers as continuations. Skips
// questions without a right answer.
std::vector<TextPair> right_answers(const std::vector<Question>& questions);

// Encodes tasks in a background thread, in order: the first one while the weights are loaded, the
// others while the model computes. A task is encoded as a whole, because scoring sorts its requests
// by length. The destructor waits for the task that is being encoded.
class EncodedTasks {
 public:
  // `tasks` and the encoder's tokenizer must outlive the object.
  EncodedTasks(TextEncoder encoder, const std::vector<LoadedTask>& tasks,
               bool counts_routing = false);

  // Returns a task; blocks until it is encoded. After that, the caller may move from the questions
  // of tasks[index]. Once any task has failed to encode, rethrows its UserError for every `index`:
  // the run ends at its next task and not hours later, when it reaches the invalid one.
  const EncodedTask& at(size_t index);

  int64_t window() const { return encoder_.window; }

 private:
  void encode_all(const std::vector<LoadedTask>& tasks, const std::stop_token& stop);

  TextEncoder encoder_;
  bool counts_routing_ = false;
  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::vector<EncodedTask> encoded_;  // [tasks]; the first done_ are complete
  size_t done_ = 0;
  std::exception_ptr error_;
  std::jthread thread_;  // declared last: uses all other members
};

// Tasks for a model that is being trained: encoded once, scored as by `moe eval`.
class LiveTasks {
 public:
  // `folder` has the tokenizer and config of the model. Throws UserError as load_tasks() does, and
  // if the folder has no tokenizer, a question has no token to score, or a task is generate_until.
  LiveTasks(const std::filesystem::path& folder, const std::vector<std::string>& names,
            const std::filesystem::path& data, std::optional<int64_t> limit);

  // Returns task -> metric -> mean. With a capacity in `routing`, requests are routed in groups as
  // in scoring/score.h.
  std::map<std::string, std::map<std::string, Mean>> run(
      const model::Llama& llama, const model::RoutingOptions& routing) const;

 private:
  std::vector<LoadedTask> tasks_;
  std::vector<std::vector<Request>> requests_;  // one per task
};

}  // namespace moe::eval
