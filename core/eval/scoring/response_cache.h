#pragma once
// What the model answered, kept on disk as it goes, so that an evaluation that was interrupted goes
// on where it was. What is kept is a whole forward (score.h says why): its requests, or one written
// answer. Its key is all that the numbers depend on: the model's contents, its routing, the
// precision, the version of moe, and the requests' tokens.
//
// The file is an io::LineLog; a line is JSON of "key" (32 hex digits) and
//   "scores"    [[logprob, is_greedy, tokens], ..], one a request of the forward
//   "counters"  one object a MoE layer, by the names of route::CounterValues
//   "answer"    in place of both: a written answer
// Numbers are printed so that they read back bit for bit. A line that does not say this, or says it
// of another number of requests, is not used.

#include <string>
#include <unordered_map>

#include "core/base/json.h"
#include "core/eval/scoring/forwards.h"
#include "core/eval/scoring/generate_until.h"
#include "core/io/checkpoint.h"
#include "core/io/content_hash.h"
#include "core/io/line_log.h"

namespace moe::eval {

// The model by its contents: the configuration, every tensor's name, type, shape and a few
// kilobytes from its beginning, middle and end, and each file's size and time of change. Reading
// all of it would take as long as loading it.
io::Digest model_digest(const io::Checkpoint& checkpoint);

class ResponseCache : public ForwardCache {
 public:
  // UserError: `file` is something else, or cannot be written.
  ResponseCache(const std::filesystem::path& file, const io::Digest& model);

  // How what follows is routed; before anything is asked.
  void use(const model::RoutingOptions& routing);

  std::optional<ForwardAnswers> recall(const PlannedForward& forward) override;
  void keep(const PlannedForward& forward, const ForwardAnswers& answers) override;

  std::optional<std::string> recall_answer(const std::vector<int64_t>& prompt,
                                           const Generation& generation);
  void keep_answer(const std::vector<int64_t>& prompt, const Generation& generation,
                   const std::string& answer);

  int64_t recalled() const { return recalled_; }  // requests and prompts, since it was opened
  const io::LineLog& log() const { return log_; }

 private:
  std::string key_of(const PlannedForward& forward) const;
  std::string key_of(const std::vector<int64_t>& prompt, const Generation& generation) const;
  void keep_line(const std::string& key, OrderedJson content);

  io::LineLog log_;
  io::Digest model_;
  std::string routing_;
  std::unordered_map<std::string, std::string> known_;  // key -> line
  int64_t recalled_ = 0;
};

}  // namespace moe::eval
