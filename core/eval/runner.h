#pragma once
// Settings of `moe eval`, the opened model folder (OpenedModel), and the loaded model (Runner).
// Most user errors are detected before the weights are loaded.

#include <c10/core/Device.h>

#include <condition_variable>
#include <deque>
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
#include "core/data/chat_template.h"
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
  bool force = false;              // replace files in `out`; allow `router` to change the gate
  bool force_memory = false;       // load the model even if memory is short
  std::optional<int64_t> limit;    // questions per task
  Bos bos = Bos::kAuto;
  bool apply_chat_template = false;     // render prompts with the chat template of `model`
  bool examples_as_turns = true;        // --fewshot-as-multiturn
  std::string system_instruction = {};  // before the tasks' descriptions
  data::ChatOptions chat_options = {};
  int64_t batch_tokens = 0;     // 0: auto_batch_tokens()
  int64_t group_tokens = 4096;  // tokens of a routing group, per logical rank
  route::RouterRequest router;
  std::filesystem::path stats;         // file for the routing statistics; empty: none
  StatsBy stats_by;                    // groupings in the statistics file
  Compat compat = Compat::kCurrent;    // version of the harness to reproduce
  std::optional<int64_t> shots = {};   // --num-fewshot; empty: each task's default
  std::filesystem::path against = {};  // --against: folder of another run; empty: none
  // Response cache: a file, a folder for responses.cache, or "off". Empty: responses.cache in
  // `out`, removed after a complete run; no cache if `out` is empty too.
  std::string cache_responses = {};
  // Ranks that share the work; null for a single process. With ranks, evaluation is collective: all
  // ranks pass the same settings and get the same results, and rank 0 writes the files.
  distributed::Comm* ranks = nullptr;
  c10::Device device = c10::kCPU;
  model::Precision precision = model::Precision::kF32;  // of matrix products

  bool is_rank_zero() const { return ranks == nullptr || ranks->rank() == 0; }
};

// Returns the input files, which outputs must not overwrite: the model's files, users' task files,
// and the files in settings.against.
std::vector<std::filesystem::path> input_files(const EvalSettings& settings);

// Returns the name of the precision in results.json: "float32", "bfloat16" or "tf32".
std::string dtype_name(model::Precision precision);

// Callbacks of an evaluation. Only `running` may be empty.
struct EvalEvents {
  std::function<void(const std::string&)> note = [](const std::string&) {};  // for the user
  // Called at the start of a task, with its number of requests or prompts.
  std::function<void(const std::string& task, int64_t requests)> start = [](const std::string&,
                                                                            int64_t) {};
  // Called with the number of requests or prompts completed since `start`.
  std::function<void(int64_t done)> progress = [](int64_t) {};
  // Called before `progress` with the number of response cache hits since `start`.
  std::function<void(int64_t requests)> cached = [](int64_t) {};
  // Called with the mean of the task's main metric over the questions answered so far.
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
// Reports the notes of the router to events.note.
OpenedModel open_model(const EvalSettings& settings, const EvalEvents& events);

// Returns the model's router, overridden by `request`. Throws the UserErrors of override_router(),
// and UserError if `request` is not empty and the model is dense.
route::ResolvedRouter resolve_router(const model::ModelConfig& config,
                                     const route::RouterRequest& request, bool force);

// Returns the text encoder with the rules of harness version `compat` for BOS and empty contexts.
// `opened` must outlive it.
TextEncoder make_encoder(const OpenedModel& opened, Compat compat);

struct ResponseFile {
  std::filesystem::path file;
  bool is_temporary = false;  // removed after a complete run
};
// Returns the path of the response cache; nullopt if responses are not cached.
std::optional<ResponseFile> response_file(const EvalSettings& settings);

// Returns the maximum number of tokens of a routing group, over all logical ranks; 0 if scores do
// not depend on groups.
int64_t group_tokens(const EvalSettings& settings, const OpenedModel& opened);

// The largest forward passes of a run, for the memory check before the model is loaded.
struct RequestSizes {
  int64_t forward_tokens = 0;  // of the largest forward pass that scores requests
  int64_t prompt_tokens = 0;   // of the longest prompt of a generation task; 0: none
  int64_t answer_tokens = 0;   // maximum length of an answer
};

// Returns the sizes of an evaluation of `requests`.
RequestSizes request_sizes(const EvalSettings& settings, const OpenedModel& opened,
                           const std::vector<Request>& requests);
// Overload for tasks that are not encoded yet. Encodes small tasks completely. For a large task,
// encodes only its longest questions and assumes a forward pass of at least forward_limit() tokens.
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

  // Applies opened.routing, which the caller may have changed, and resets all statistics. `label`
  // precedes the task names in events.start and in messages.
  void restart(const std::string& label = "");

  // Scores `requests`. `name` is their name in events.start and in the statistics. `loaded` is
  // their task, for events.running; may be null.
  Scores run(const std::string& name, const std::vector<Request>& requests,
             const LoadedTask* loaded = nullptr);
  // Returns one answer per prompt (generate_until.h). Does not count routing.
  std::vector<std::string> generate(const LoadedTask& loaded,
                                    const std::vector<std::vector<int64_t>>& prompts);
  // Returns the routing statistics since restart(); nullopt for a dense model. Rank 0 writes them
  // to `file` if it is not empty.
  std::optional<RoutingStats> finish(const std::filesystem::path& file);
  // Removes a temporary response cache. Call after all results are on disk.
  void remove_temporary_cache();

 private:
  void open_cache();
  void find_or_generate(const Generation& generation,
                        const std::vector<std::vector<int64_t>>& prompts,
                        const std::vector<size_t>& indices, const OnAnswer& done);
  void start(const std::string& name, int64_t requests);
  void progress(int64_t done);

  const EvalSettings& settings_;
  const OpenedModel& opened_;
  const EvalEvents& events_;
  model::Llama llama_;
  ScoreSettings scoring_;
  std::optional<RoutingStats> stats_;
  std::optional<TokenTally> tally_;
  std::optional<ResponseFile> response_file_;
  std::optional<ResponseCache> cache_;
  std::string label_, name_;  // of the current run
  int64_t requests_ = 0, cached_before_ = 0;
};

// A task as tokens.
struct EncodedTask {
  // Requests to score. For a generation task: right_answers() if routing is counted, else empty.
  std::vector<Request> requests;
  std::vector<std::vector<int64_t>> prompts;  // to answer; for a generation task only
};

// Encodes all questions of a task. Throws UserError if a question has no token to score, or if the
// longest answer of a generation task does not fit into the window.
EncodedTask encode_task(const TextEncoder& encoder, const LoadedTask& loaded,
                        bool counts_routing = false);

// Returns the questions of a generation task with their right answers as continuations. Skips
// questions without a right answer.
std::vector<TextPair> right_answers(const std::vector<Question>& questions);

// Encodes tasks in order in a background thread, while the weights are loaded and while the model
// computes. A task is encoded as a whole, because scoring sorts its requests by length. The
// destructor waits for the task that is being encoded.
class EncodedTasks {
 public:
  // `tasks` and the encoder's tokenizer must outlive the object.
  EncodedTasks(TextEncoder encoder, const std::vector<LoadedTask>& tasks,
               bool counts_routing = false);

  // Blocks until a task is encoded and returns it. After that, the caller may move from the
  // questions of tasks[index]. Once any task has failed to encode, rethrows its UserError for every
  // `index`, so that a long run fails early.
  const EncodedTask& at(size_t index);

  int64_t window() const { return encoder_.window; }

 private:
  TextEncoder encoder_;
  std::mutex mutex_;  // guards encoded_ and error_
  std::condition_variable changed_;
  std::deque<EncodedTask> encoded_;  // complete tasks; a deque keeps references valid
  std::exception_ptr error_;
  std::jthread thread_;  // declared last: uses all other members
};

// Tasks that are encoded once and scored repeatedly during training, with the scores of `moe eval`.
class LiveTasks {
 public:
  // `folder` contains the tokenizer and config of the model. Throws the UserErrors of load_tasks(),
  // and UserError if the folder has no tokenizer, a question has no token to score, or a task is
  // generate_until.
  LiveTasks(const std::filesystem::path& folder, const std::vector<std::string>& names,
            const std::filesystem::path& data, std::optional<int64_t> limit);

  // Scores all tasks. Returns task -> metric -> mean. If `routing` has a capacity, requests are
  // routed in groups (scoring/score.h).
  std::map<std::string, std::map<std::string, Mean>> run(
      const model::Llama& llama, const model::RoutingOptions& routing) const;

 private:
  std::vector<LoadedTask> tasks_;
  std::vector<std::vector<Request>> requests_;  // one per task
};

}  // namespace moe::eval
