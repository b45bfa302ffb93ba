#pragma once
// Tasks as tokens, made by a thread of its own, task after task: the first is encoded while the
// weights are read, the others while the model computes. A task is the smallest piece, because the
// longest of its requests are computed first.

#include <condition_variable>
#include <exception>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/eval/metrics/metrics.h"
#include "core/eval/scoring/requests.h"
#include "core/eval/tasks/tasks.h"
#include "core/model/llama/llama.h"

namespace moe::eval {

// Requests to be scored; or prompts whose answers are generated and, where routing is counted, each
// question with its right answer as requests.
struct EncodedTask {
  std::vector<Request> requests;
  std::vector<std::vector<int64_t>> prompts;
};

// UserError: a question that leaves nothing to score, or an answer longer than the window.
EncodedTask encode_task(const TextEncoder& encoder, const LoadedTask& loaded,
                        bool counts_routing = false);

// Each question and its right answer, of a task whose answers are generated; questions without one
// are left out.
std::vector<TextPair> right_answers(const std::vector<Question>& questions);

class EncodedTasks {
 public:
  // `tasks`, and what the encoder reads, must outlive this.
  EncodedTasks(TextEncoder encoder, const std::vector<LoadedTask>& tasks,
               bool counts_routing = false);
  ~EncodedTasks();  // leaves the task in hand to its end
  EncodedTasks(const EncodedTasks&) = delete;
  EncodedTasks& operator=(const EncodedTasks&) = delete;

  // Waits for a task; its questions may be moved away from then on. UserError of the first task
  // that cannot be encoded, as soon as there is one and whatever `index` is: hours may lie between
  // the two.
  const EncodedTask& at(size_t index);

  int64_t window() const { return encoder_.window; }

 private:
  void encode_all(const std::vector<LoadedTask>& tasks, const std::stop_token& stop);

  TextEncoder encoder_;
  bool counts_routing_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<EncodedTask> encoded_;  // [tasks]; the first done_ of them stand
  size_t done_ = 0;
  std::exception_ptr failed_;
  std::jthread thread_;  // last: it uses all the others
};

// Tasks for a model in memory, during training: tokenised once, scored by the rules of `moe eval`.
class LiveTasks {
 public:
  // `folder` has the tokenizer and config of the models. Throws UserError: as load_tasks(); a
  // folder without a tokenizer; nothing to score; a generate_until task.
  LiveTasks(const std::filesystem::path& folder, const std::vector<std::string>& names,
            const std::filesystem::path& data, std::optional<int64_t> limit);

  // Returns task -> metric -> mean. With a capacity in `routing`, requests share groups as in
  // scoring/score.h.
  std::map<std::string, std::map<std::string, Mean>> run(
      const model::Llama& llama, const model::RoutingOptions& routing) const;

 private:
  std::vector<LoadedTask> tasks_;
  std::vector<std::vector<Request>> requests_;  // one a task
};

}  // namespace moe::eval
