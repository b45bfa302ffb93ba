#pragma once
// The model under evaluation, in two steps: what of its folder can refuse before the weights are
// read, and the loaded model that scores requests and writes answers.

#include <optional>
#include <string>
#include <vector>

#include "core/eval/evaluate.h"
#include "core/eval/token_tally.h"
#include "core/io/checkpoint.h"
#include "core/io/tokenizer.h"
#include "core/model/llama.h"

namespace moe::eval {

// The folder without its weights: enough to refuse, or to tokenise.
struct Subject {
  io::Checkpoint checkpoint;
  model::ModelConfig config;
  io::Tokenizer tokenizer;
  route::ResolvedRouter routing;
  bool adds_bos = false;
};

// UserError: what is wrong with the folder, the router, --bos or --stats. Notes go to `events`.
Subject open_subject(const EvalSettings& settings, const EvalEvents& events);

// As the settings' harness encodes; `subject` must outlive it.
TextEncoder encoder_of(const Subject& subject, Compat compat);

// Tokens of a routing group over all logical ranks; 0 where scores do not depend on groups.
int64_t group_tokens(const EvalSettings& settings, const Subject& subject);

// Scores requests, writes answers, and gathers what the routing says. `subject` and `events` must
// outlive it.
class Runner {
 public:
  Runner(const EvalSettings& settings, const Subject& subject, const EvalEvents& events);
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // `what` names the task; a label a request.
  Scores run(const std::string& what,
             const std::vector<Request>& requests,
             const std::vector<RequestLabel>& labels);
  // One answer a prompt (written_answers.h); their routing is not counted.
  std::vector<std::string> write(const LoadedTask& loaded,
                                 const std::vector<std::vector<int64_t>>& prompts);
  // The statistics of a mixture, written to their file where one is wanted.
  std::optional<RoutingStats> finish(const std::filesystem::path& file);

 private:
  const Subject& subject_;
  const EvalEvents& events_;
  model::Llama llama_;
  ScoreSettings settings_;
  std::optional<RoutingStats> stats_;
  std::optional<TokenTally> tally_;
};

}  // namespace moe::eval
