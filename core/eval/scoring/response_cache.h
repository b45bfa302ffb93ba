#pragma once
// File of the model's responses, appended to during an evaluation, so that an interrupted one can
// be resumed. An entry is a generated answer or a whole forward pass, because scores depend on
// all requests of a pass. A run with a partly filled cache returns
// the scores of a run with an empty one. The key is a hash of all that the result depends on: the
// model's contents, its routing, the precision and the kind of device, the version of moe, and the
// requests' tokens.
//
// The file (core/io/formats.md) is an io::LineLog. Numbers are exact. A line of another form, or
// for another number of requests, is ignored.

#include <string>
#include <unordered_map>

#include "core/eval/scoring/forwards.h"
#include "core/io/checkpoint.h"
#include "core/io/checksums.h"
#include "core/io/line_log.h"

namespace moe::eval {

// Returns a hash of the model: the configuration, every tensor's name, type, shape and 4 KiB each
// from its beginning, middle and end, and each file's size and modification time. Hashing all bytes
// would take as long as loading them.
io::Digest model_digest(const io::Checkpoint& checkpoint);

class ResponseCache {
 public:
  // `computed`: precision and kind of device. Throws UserError if `file` is another kind of file or
  // cannot be written.
  ResponseCache(const std::filesystem::path& file, const io::Digest& model,
                std::string computed = "float32 cpu");

  // Sets the routing of the following forward passes. Must be called before the first of them.
  void use(const model::RoutingOptions& routing);

  std::optional<ForwardScores> find(const PlannedForward& forward);
  void store(const PlannedForward& forward, const ForwardScores& scores);

  std::optional<std::string> find_text(const std::vector<int64_t>& prompt,
                                       const Generation& generation);
  void store_text(const std::vector<int64_t>& prompt, const Generation& generation,
                  const std::string& answer);

  int64_t hits() const { return hits_; }  // requests and prompts found since it was opened
  const io::LineLog& log() const { return log_; }

 private:
  void begin_key(const char* kind, io::ContentHash& hash) const;
  std::string key(const PlannedForward& forward) const;
  std::string key(const std::vector<int64_t>& prompt, const Generation& generation) const;
  std::optional<Json> find_line(const std::string& key) const;
  void store_line(const std::string& key, OrderedJson content);

  io::LineLog log_;
  io::Digest model_;
  std::string computed_, routing_;
  std::unordered_map<std::string, std::string> lines_;  // key -> line
  int64_t hits_ = 0;
};

}  // namespace moe::eval
