#pragma once
// The model's responses, appended to a file as they come, so that an evaluation that was
// interrupted continues where it was. An entry is a whole forward (forwards.h says why), or one
// generated answer. Its key is a hash of all that the result depends on: the model's contents, its
// routing, the precision and the kind of device, the version of moe, and the requests' tokens.
//
// The file is an io::LineLog; a line is JSON of "key" (32 hex digits) and
//   "scores"    [[logprob, is_greedy, tokens], ..], one a request of the forward
//   "counters"  one object a MoE layer, by the names of route::CounterValues
//   "answer"    instead of both: a generated answer
// Numbers are printed so that they read back bit for bit. A line of another form, or for another
// number of requests, is not used.

#include <string>
#include <unordered_map>

#include "core/base/json.h"
#include "core/eval/scoring/forwards.h"
#include "core/eval/scoring/generate_until.h"
#include "core/io/checkpoint.h"
#include "core/io/checksums.h"
#include "core/io/line_log.h"

namespace moe::eval {

// The model by its contents: the configuration, every tensor's name, type, shape and a few
// kilobytes from its beginning, middle and end, and each file's size and time of change. Reading
// all of it would take as long as loading it.
io::Digest model_digest(const io::Checkpoint& checkpoint);

class ResponseCache : public ForwardCache {
 public:
  // `computed`: in which precision, on what kind of device. UserError: `file` is something else, or
  // cannot be written.
  ResponseCache(const std::filesystem::path& file, const io::Digest& model,
                std::string computed = "float32 cpu");

  // The routing of the forwards that follow. Must be called before the first of them.
  void use(const model::RoutingOptions& routing);

  std::optional<ForwardScores> find(const PlannedForward& forward) override;
  void store(const PlannedForward& forward, const ForwardScores& answers) override;

  std::optional<std::string> find_text(const std::vector<int64_t>& prompt,
                                       const Generation& generation);
  void store_text(const std::vector<int64_t>& prompt, const Generation& generation,
                  const std::string& answer);

  int64_t hits() const { return hits_; }  // requests and prompts found, since it was opened
  const io::LineLog& log() const { return log_; }

 private:
  std::string key_of(const PlannedForward& forward) const;
  std::string key_of(const std::vector<int64_t>& prompt, const Generation& generation) const;
  void store_line(const std::string& key, OrderedJson content);

  io::LineLog log_;
  io::Digest model_;
  std::string computed_, routing_;
  std::unordered_map<std::string, std::string> lines_;  // key -> line
  int64_t hits_ = 0;
};

}  // namespace moe::eval
