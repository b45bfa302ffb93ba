#include "core/bench/eval_requests.h"

#include <algorithm>
#include <cmath>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/eval/scoring/requests.h"

namespace moe::bench {

namespace {

constexpr int kChoices = 4;

// exp(N(mean, 0.5^2)) within least..most.
int64_t some_length(Random& random, double mean, int64_t least, int64_t most) {
  const double length = std::exp(mean + 0.5 * random.normal());
  return std::clamp(static_cast<int64_t>(length), std::min(least, most), most);
}

void append(std::vector<int64_t>& tokens, Random& random, int64_t count, int64_t vocabulary) {
  for (int64_t i = 0; i < count; ++i) {
    tokens.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(vocabulary))));
  }
}

RequestSet made_up_set(const std::string& name, const model::ModelConfig& config, int64_t count) {
  const bool spans = name == "spans";
  const int64_t half = std::max<int64_t>(1, config.max_position_embeddings / 2);
  Random random(0, name);
  RequestSet set{name, count, {}};
  for (int64_t question = 0; question < count; ++question) {
    std::vector<int64_t> context;
    const int64_t length =
        spans ? some_length(random, 4.2, 16, 256) : some_length(random, 5.0, 48, 512);
    append(context, random, std::min(length, half), config.vocab_size);
    for (int choice = 0; choice < kChoices; ++choice) {
      const int64_t scored = spans ? std::min(some_length(random, 2.6, 2, 64), half) : 1;
      eval::Request request{context, scored, false};
      append(request.tokens, random, scored, config.vocab_size);
      set.requests.push_back(std::move(request));
    }
  }
  return set;
}

}  // namespace

std::vector<RequestSet> task_sets(const std::vector<eval::LoadedTask>& tasks,
                                  const eval::TextEncoder& encoder) {
  std::vector<RequestSet> sets;
  for (const auto& loaded : tasks) {
    if (loaded.task.output == eval::OutputType::kGenerateUntil) {
      throw UserError(
          "{}: its answers are written, not scored; bench eval measures scoring, name tasks with "
          "choices",
          loaded.task.name);
    }
    sets.push_back({loaded.task.name, static_cast<int64_t>(loaded.questions.size()),
                    eval::encode_requests(encoder, eval::text_pairs(loaded.questions))});
  }
  return sets;
}

std::vector<RequestSet> made_up_sets(const model::ModelConfig& config, int64_t questions) {
  return {made_up_set("letters", config, questions), made_up_set("spans", config, questions)};
}

}  // namespace moe::bench
