#pragma once
// Log of the model's responses, from which an interrupted evaluation is resumed. An entry is a
// generated answer or the scores of a forward pass: of all its requests, which may affect each
// other. Results with a cache equal results without one. The key is a hash of everything that
// the result depends on: contents and routing of the model, precision, device type, version of moe,
// and the requests' tokens. The file (core/io/formats.md) is an io::LineLog. Numbers are stored
// without rounding. Invalid lines are ignored.

#include <string>
#include <unordered_map>

#include "core/eval/scoring/forwards.h"
#include "core/io/checkpoint.h"
#include "core/io/checksums.h"
#include "core/io/line_log.h"

namespace moe::eval {

// Returns a hash of the model: its configuration; the name, dtype, shape and three samples of 4 KiB
// (start, middle, end) of every tensor; the size and modification time of every file. Hashing all
// bytes would take as long as loading them.
io::Digest model_digest(const io::Checkpoint& checkpoint);

class ResponseCache {
 public:
  // `backend`: precision and device type. Throws UserError if `file` exists and is not a response
  // cache, or cannot be written.
  ResponseCache(const std::filesystem::path& file, const io::Digest& model,
                std::string backend = "float32 cpu");

  // Sets the routing, which is part of the keys. Must be called before find() and store().
  void use(const model::RoutingOptions& routing);

  std::optional<ForwardScores> find(const PlannedForward& forward);
  void store(const PlannedForward& forward, const ForwardScores& scores);

  std::optional<std::string> find_answer(const std::vector<int64_t>& prompt,
                                         const Generation& generation);
  void store_answer(const std::vector<int64_t>& prompt, const Generation& generation,
                    const std::string& answer);

  int64_t hits() const { return hits_; }  // number of requests and prompts found
  const io::LineLog& log() const { return log_; }

 private:
  void begin_key(const char* kind, io::ContentHash& hash) const;
  std::string key(const PlannedForward& forward) const;
  std::string key(const std::vector<int64_t>& prompt, const Generation& generation) const;
  std::optional<Json> find_line(const std::string& key) const;
  void store_line(const std::string& key, OrderedJson content);

  io::LineLog log_;
  io::Digest model_;
  std::string backend_, routing_;
  std::unordered_map<std::string, std::string> lines_;  // key -> line
  int64_t hits_ = 0;
};

}  // namespace moe::eval
