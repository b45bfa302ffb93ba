// The fast path: packed sequences, no padding, the head only at positions whose next token is
// scored. score_test.cpp holds it to the obvious way: one request at a time, all logits.
#include "core/eval/score.h"

#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"

namespace moe::eval {

using torch::Tensor;

namespace {

// Logits of this many bytes at once: a long continuation times a large vocabulary must not fill the
// memory, and smaller blocks are reused by malloc instead of being mapped anew (piqa, 32000 pieces,
// CPU seconds: 8.4 at 64 MiB, 3.5 of them page faults; 7.7 and 2.1 at 16 MiB).
constexpr int64_t kLogitsBytes = int64_t{16} << 20;

Batches pack_in_order(const std::vector<Request>& requests,
                      const std::vector<size_t>& order,
                      int64_t limit) {
  Batches batches;
  int64_t filled = 0;
  for (const size_t index : order) {
    const int64_t tokens = requests[index].inputs();
    if (batches.empty() || filled + tokens > limit) {
      batches.emplace_back();
      filled = 0;
    }
    batches.back().push_back(index);
    filled += tokens;
  }
  return batches;
}

std::vector<size_t> file_order(const std::vector<Request>& requests) {
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// One forward's inputs and questions, N = scored positions of the batch.
struct PackedBatch {
  model::Packed inputs;          // [T]
  std::vector<int64_t> rows;     // [N] which of the T positions predict a scored token
  std::vector<int64_t> targets;  // [N] that token
  std::vector<size_t> owners;    // [N] its request
};

PackedBatch pack(const std::vector<Request>& requests, const std::vector<size_t>& batch) {
  PackedBatch packed;
  std::vector<int64_t> ids;
  for (const size_t index : batch) {
    const Request& request = requests[index];
    const auto begin = static_cast<int64_t>(ids.size());
    ids.insert(ids.end(), request.tokens.begin(), request.tokens.end() - 1);
    packed.inputs.lengths.push_back(request.inputs());
    for (int64_t i = request.inputs() - request.scored; i < request.inputs(); ++i) {
      packed.rows.push_back(begin + i);
      packed.targets.push_back(request.tokens[static_cast<size_t>(i) + 1]);
      packed.owners.push_back(index);
    }
  }
  packed.inputs.ids = torch::tensor(ids, at::kLong);
  return packed;
}

struct TokenScores {
  Tensor logprobs;   // [N] f32
  Tensor is_argmax;  // [N] bool
};

TokenScores score_rows(const model::Llama& llama, const Tensor& hidden, const Tensor& targets) {
  const int64_t row_bytes = llama.config().vocab_size * static_cast<int64_t>(sizeof(float));
  const int64_t chunk = std::max<int64_t>(1, kLogitsBytes / row_bytes);
  std::vector<Tensor> logprobs, is_argmax;
  for (int64_t begin = 0; begin < targets.size(0); begin += chunk) {
    const int64_t rows = std::min(chunk, targets.size(0) - begin);
    const Tensor logits = llama.head(hidden.narrow(0, begin, rows));  // [rows, V]
    const Tensor target = targets.narrow(0, begin, rows);
    logprobs.push_back(logits.gather(1, target.unsqueeze(1)).squeeze(1) - logits.logsumexp(1));
    is_argmax.push_back(logits.argmax(1) == target);
  }
  return {at::cat(logprobs).cpu(), at::cat(is_argmax).cpu()};
}

void add_batch(const model::Llama& llama,
               const PackedBatch& batch,
               const Tensor& hidden,
               Scores& total) {
  if (batch.rows.empty()) {
    return;  // requests that are only run
  }
  const auto device = hidden.device();
  const Tensor rows = torch::tensor(batch.rows, at::kLong).to(device);
  const Tensor targets = torch::tensor(batch.targets, at::kLong).to(device);
  const TokenScores tokens = score_rows(llama, hidden.index_select(0, rows), targets);
  const float* logprobs = tokens.logprobs.const_data_ptr<float>();
  const bool* is_argmax = tokens.is_argmax.const_data_ptr<bool>();
  for (size_t i = 0; i < batch.owners.size(); ++i) {
    Score& score = total.scores[batch.owners[i]];
    if (!std::isfinite(logprobs[i])) {
      throw UserError(
          "request {}: the model gives a log-probability of {}; its weights hold NaN, infinity or "
          "numbers too large",
          batch.owners[i] + 1,
          logprobs[i]);
    }
    score.is_greedy = (score.tokens == 0 || score.is_greedy) && is_argmax[i];
    score.logprob += logprobs[i];
    ++score.tokens;
  }
}

void add_counters(const std::vector<route::Counters>& counters, Scores& total) {
  if (counters.empty()) {
    return;
  }
  const auto values = route::read_counters(counters);
  total.counters.resize(values.size());
  for (size_t layer = 0; layer < values.size(); ++layer) {
    total.counters[layer].add(values[layer]);
  }
}

}  // namespace

Batches batches_by_length(const std::vector<Request>& requests, int64_t batch_tokens) {
  std::vector<size_t> order = file_order(requests);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return requests[a].inputs() > requests[b].inputs();
  });
  return pack_in_order(requests, order, batch_tokens);
}

Batches groups_in_order(const std::vector<Request>& requests, int64_t group_tokens) {
  return pack_in_order(requests, file_order(requests), group_tokens);
}

bool routes_in_groups(const model::ModelConfig& config, const route::RouterSettings& router) {
  return config.moe && router.family == route::Family::kTopK && router.capacity_factor;
}

Scores score_requests(const model::Llama& llama,
                      const std::vector<Request>& requests,
                      const ScoreSettings& settings,
                      const std::function<void(int64_t)>& on_progress) {
  const bool grouped = routes_in_groups(llama.config(), settings.routing.router);
  const Batches batches =
      grouped ? groups_in_order(requests, settings.group_tokens * settings.routing.ep_ranks)
              : batches_by_length(requests, settings.batch_tokens);
  const at::NoGradGuard no_gradients;
  Scores total;
  total.scores.resize(requests.size());
  total.forwards = static_cast<int64_t>(batches.size());
  int64_t done = 0;
  for (const auto& indices : batches) {
    const PackedBatch batch = pack(requests, indices);
    const model::ForwardResult result = llama.forward(batch.inputs, settings.routing);
    add_batch(llama, batch, result.hidden, total);
    add_counters(result.counters, total);
    if (settings.observe) {
      settings.observe({indices, result});
    }
    total.input_tokens += batch.inputs.ids.size(0);
    done += static_cast<int64_t>(indices.size());
    if (on_progress) {
      on_progress(done);
    }
  }
  return total;
}

}  // namespace moe::eval
