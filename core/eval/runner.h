#pragma once
// The model under evaluation, in two steps: its folder without the weights, where most errors show,
// and the loaded model that scores requests and generates answers.

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/base/resources.h"
#include "core/eval/scoring/response_cache.h"
#include "core/eval/scoring/token_tally.h"
#include "core/eval/settings.h"
#include "core/io/checkpoint.h"
#include "core/model/llama/llama.h"
#include "core/tokenizer/tokenizer.h"

namespace moe::eval {

// The folder without its weights: enough to check it, and to tokenise.
struct OpenedModel {
  io::Checkpoint checkpoint;
  model::ModelConfig config;
  io::Tokenizer tokenizer;
  route::ResolvedRouter routing;
  bool adds_bos = false;
};

// UserError: what is wrong with the folder, the router, --bos or --stats. Notes go to `events`.
OpenedModel open_model(const EvalSettings& settings, const EvalEvents& events);

// The folder's router with `request` in its place. UserError: what override_router says; a dense
// model has none.
route::ResolvedRouter resolve_router(const model::ModelConfig& config,
                                     const route::RouterRequest& request, bool force);

// As the settings' harness encodes; `opened` must outlive it.
TextEncoder encoder_of(const OpenedModel& opened, Compat compat);

// The file that caches responses, and whether it is removed when the run has ended well (its
// results then hold all that is in it); none where nothing is cached.
struct ResponseFile {
  std::filesystem::path file;
  bool ends_with_run = false;
};
std::optional<ResponseFile> response_file(const EvalSettings& settings);

// Tokens of a routing group over all logical ranks; 0 where scores do not depend on groups.
int64_t group_tokens(const EvalSettings& settings, const OpenedModel& opened);

// How the opened model scores requests, without ranks and caches.
ScoreSettings score_settings(const EvalSettings& settings, const OpenedModel& opened);

// Of the matrices that stay where the folder is mapped; 0 where they are copied to a GPU.
uint64_t mapped_bytes(const EvalSettings& settings, const OpenedModel& opened);

// The largest forward passes of a run, known before the model is loaded; the memory check reads
// them.
struct RequestSizes {
  int64_t forward_tokens = 0;  // of the largest forward pass that scores requests
  int64_t prompt_tokens = 0;   // of the longest prompt whose answer is generated; 0: no generation
  int64_t answer_tokens = 0;   // at most so many of such an answer
};

// Returns the sizes of a run over `requests`.
RequestSizes request_sizes(const EvalSettings& settings, const OpenedModel& opened,
                           const std::vector<Request>& requests);
// Overload for tasks that are not encoded yet: encodes a small task; assumes of a large one that
// its requests fill a forward pass to the limit.
RequestSizes request_sizes(const EvalSettings& settings, const OpenedModel& opened,
                           const std::vector<LoadedTask>& tasks);

// Of the host's memory to load the opened model and answer with it, above what this process has.
MemoryNeed memory_need(const EvalSettings& settings, const OpenedModel& opened,
                       const RequestSizes& sizes);

// Scores requests, generates answers, and gathers statistics of the routing. Its arguments must
// outlive it. Loads the model: UserError where memory is short on any rank (--force-memory).
class Runner {
 public:
  Runner(const EvalSettings& settings, const OpenedModel& opened, const EvalEvents& events,
         const RequestSizes& sizes);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Continues with the present routing of the opened model, all statistics at zero. `label` goes
  // before the names of tasks.
  void restart(const std::string& label = "");

  // `what` names the task; a label a request. `loaded` is their task, where they have one.
  Scores run(const std::string& what, const std::vector<Request>& requests,
             const std::vector<RequestLabel>& labels, const LoadedTask* loaded = nullptr);
  // One answer a prompt (generate_until.h); their routing is not counted.
  std::vector<std::string> generate(const LoadedTask& loaded,
                                    const std::vector<std::vector<int64_t>>& prompts);
  // The statistics of a mixture, written to their file where one is wanted.
  std::optional<RoutingStats> finish(const std::filesystem::path& file);
  // To be called when all results are on disk: removes the responses cached for this run alone.
  void remove_temporary_cache();

 private:
  void open_cache();
  void answer(const Generation& generation, const std::vector<std::vector<int64_t>>& prompts,
              const std::vector<size_t>& wanted,
              const std::function<void(size_t prompt, std::string answer)>& done);
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
  std::string label_, what_;  // what is run now
  int64_t requests_ = 0, cached_before_ = 0;
};

}  // namespace moe::eval
