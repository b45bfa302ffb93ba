// Packed sequences without padding; what requests have in common is computed once, and logits only
// at positions whose next token is scored. score_test.cpp compares this with the plain way: one
// request at a time, all logits.
#include "core/eval/scoring/score.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/base/resources.h"
#include "core/distributed/comm.h"
#include "core/eval/scoring/forwards.h"
#include "core/io/checksums.h"
#include "kernels/ops/token_log_probs.h"

namespace moe::eval {

using at::Tensor;

namespace {

std::string digest_of(const std::vector<Request>& requests) {
  io::ContentHash hash;
  for (const auto& request : requests) {
    const std::vector<int64_t> lengths = {request.scored,
                                          static_cast<int64_t>(request.tokens.size())};
    hash.update(std::as_bytes(std::span(lengths)));
    hash.update(std::as_bytes(std::span(request.tokens)));
  }
  return hash.digest().hex();
}

// UserError on all ranks when they were given different requests or settings.
void check_same_requests(const model::Llama& llama, const std::vector<Request>& requests,
                         const ScoreSettings& settings) {
  distributed::Comm* ranks = settings.ranks;
  if (ranks != nullptr && ranks->size() > 1) {
    distributed::check_same_on_all_ranks(
        *ranks, "what is evaluated",
        fmt::format("{} requests {}\nrouter {}\nep-ranks {}\nbatch-tokens {}\n"
                    "group-tokens {}\nproducts in {}\n",
                    requests.size(), digest_of(requests),
                    route::to_full_string(settings.routing.router), settings.routing.ep_ranks,
                    settings.batch_tokens, settings.group_tokens,
                    llama.product_type() == at::kBFloat16 ? "bf16" : "fp32"));
  }
}

// A token whose log-probability counts for a request.
struct ScoredToken {
  int64_t row;     // of the inputs, which predicts the token
  int64_t target;  // the token
  size_t request;
};

struct PackedBatch {
  model::Packed inputs;                       // [T]
  std::vector<ScoredToken> scored;            // by row
  std::vector<kernels::TargetToken> targets;  // of each, with its row among inputs.output_rows
  std::vector<size_t> requests;               // in the order of the inputs
};

// The inputs of a batch: all roots, then all branches.
class Packer {
 public:
  explicit Packer(const std::vector<Request>& requests) : requests_(requests) {}

  PackedBatch pack(const std::vector<PrefixGroup>& groups) {
    std::vector<int64_t> root_rows;
    for (const PrefixGroup& group : groups) {
      root_rows.push_back(append(group.request, 0, group.root, -1));
    }
    for (size_t number = 0; number < groups.size(); ++number) {
      add_members(groups[number], static_cast<int64_t>(number), root_rows[number]);
    }
    std::stable_sort(batch_.scored.begin(), batch_.scored.end(),
                     [](const ScoredToken& a, const ScoredToken& b) { return a.row < b.row; });
    number_targets();
    batch_.inputs.ids = at::tensor(ids_, at::kLong);
    if (batch_.inputs.lengths.size() == groups.size()) {
      batch_.inputs.continues.clear();  // no sequence has a prefix elsewhere
    }
    return std::move(batch_);
  }

 private:
  // Inputs begin..begin+length-1 of a request as a sequence; returns its first row.
  int64_t append(size_t request, int64_t begin, int64_t length, int64_t prefix) {
    const auto row = static_cast<int64_t>(ids_.size());
    const auto from = requests_[request].tokens.begin() + begin;
    ids_.insert(ids_.end(), from, from + length);
    batch_.inputs.lengths.push_back(length);
    batch_.inputs.continues.push_back(prefix);
    return row;
  }

  void add_members(const PrefixGroup& group, int64_t number, int64_t root_row) {
    std::vector<int64_t> branch_rows;
    for (const auto& branch : group.branches) {
      branch_rows.push_back(append(branch.request, group.root, branch.length, number));
    }
    for (const auto& [index, branch] : group.members) {
      const Request& request = requests_[index];
      for (int64_t i = request.inputs() - request.scored; i < request.inputs(); ++i) {
        const int64_t row = i < group.root ? root_row + i : branch_rows[branch] + i - group.root;
        batch_.scored.push_back({row, request.tokens[static_cast<size_t>(i) + 1], index});
      }
      batch_.requests.push_back(index);
    }
  }

  // A row is asked for once: equal choices share theirs. None is where requests run for their
  // routing alone.
  void number_targets() {
    std::vector<int64_t> rows;
    for (const ScoredToken& token : batch_.scored) {
      if (rows.empty() || rows.back() != token.row) {
        rows.push_back(token.row);
      }
      batch_.targets.push_back({static_cast<int64_t>(rows.size()) - 1, token.target});
    }
    if (!rows.empty()) {
      batch_.inputs.output_rows = at::tensor(rows, at::kLong);
    }
  }

  const std::vector<Request>& requests_;
  std::vector<int64_t> ids_;
  PackedBatch batch_;
};

void add_token(const ScoredToken& token, float logprob, bool is_argmax, Scores& total) {
  if (!std::isfinite(logprob)) {
    throw UserError(
        "request {}: the model gives a log-probability of {}; its weights hold NaN, infinity or "
        "numbers too large",
        token.request + 1, logprob);
  }
  Score& score = total.scores[token.request];
  score.is_greedy = (score.tokens == 0 || score.is_greedy) && is_argmax;
  score.logprob += logprob;
  ++score.tokens;
}

// hidden [N, D] f32, those of inputs.output_rows
void add_batch(const model::Llama& llama, const PackedBatch& batch, const Tensor& hidden,
               Scores& total) {
  if (batch.targets.empty()) {
    return;
  }
  total.head_rows += hidden.size(0);
  std::vector<kernels::TokenLogProb> scores;
  llama.with_head([&](const Tensor& weight) {
    scores = kernels::token_log_probs(hidden, weight, llama.product_type(), batch.targets);
  });
  for (size_t i = 0; i < scores.size(); ++i) {
    add_token(batch.scored[i], scores[i].logprob, scores[i].is_argmax, total);
  }
}

void add_counters(const std::vector<route::CounterValues>& values, Scores& total) {
  if (values.empty()) {
    return;
  }
  total.counters.resize(values.size());
  for (size_t layer = 0; layer < values.size(); ++layer) {
    total.counters[layer].add(values[layer]);
  }
}

ForwardOutput run_forward(const model::Llama& llama, const PackedBatch& batch,
                          const ScoreSettings& settings, Scores& total) {
  model::ForwardResult result = llama.forward(batch.inputs, settings.routing);
  add_batch(llama, batch, result.hidden, total);
  ForwardOutput output;
  output.token_rows = std::move(result.token_rows);
  if (!result.counters.empty()) {
    output.scores.counters = route::read_counters(result.counters);
  }
  for (const size_t request : batch.requests) {
    output.scores.scores.push_back(total.scores[request]);
  }
  return output;
}

ForwardOutput find_or_run(const model::Llama& llama, const std::vector<Request>& requests,
                          const PackedBatch& batch, const ScoreSettings& settings, Scores& total) {
  const PlannedForward forward{requests, batch.requests, batch.inputs};
  if (settings.cache != nullptr) {
    if (auto scores = settings.cache->find(forward)) {
      return {std::move(*scores)};
    }
  }
  ForwardOutput output = run_forward(llama, batch, settings, total);
  if (settings.cache != nullptr) {
    settings.cache->store(forward, output.scores);
  }
  return output;
}

// Adds what any rank found out about a forward.
void add_output(const PackedBatch& batch, const ForwardOutput& output,
                const ScoreSettings& settings, Scores& total) {
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    total.scores[batch.requests[i]] = output.scores.scores.at(i);
  }
  add_counters(output.scores.counters, total);
  total.input_tokens += batch.inputs.ids.size(0);
  if (settings.observe) {
    settings.observe({batch.requests, output.token_rows});
  }
  if (settings.answered) {
    settings.answered(batch.requests, total);
  }
}

// Ranks plan the same forwards, and take the least that one of them has memory for.
int64_t limit_on_all_ranks(const model::Llama& llama, const ScoreSettings& settings) {
  int64_t tokens = forward_limit(llama.config(), llama.mapped_bytes(), settings);
  const bool is_set =
      settings.batch_tokens > 0 || routes_in_groups(llama.config(), settings.routing.router);
  if (settings.ranks != nullptr && !is_set) {
    for (const auto& of_rank : distributed::gather_numbers(*settings.ranks, {tokens})) {
      tokens = std::min(tokens, of_rank.front());
    }
  }
  return tokens;
}

PrefixBatches plan_forwards(const model::ModelConfig& config, const std::vector<Request>& requests,
                            const ScoreSettings& settings, int64_t limit) {
  if (routes_in_groups(config, settings.routing.router)) {
    return each_alone(requests, groups_in_order(requests, limit));
  }
  return settings.observe ? each_alone(requests, batches_by_length(requests, limit))
                          : pack_prefix_groups(find_prefix_groups(requests), limit);
}

}  // namespace

int64_t forward_limit(const model::ModelConfig& config, uint64_t mapped_bytes,
                      const ScoreSettings& settings) {
  if (routes_in_groups(config, settings.routing.router)) {
    return settings.group_tokens * settings.routing.ep_ranks;
  }
  return settings.batch_tokens > 0 ? settings.batch_tokens
                                   : auto_batch_tokens(config, settings.routing.router,
                                                       {mapped_bytes, available_memory_bytes()});
}

int64_t largest_forward(const model::ModelConfig& config, uint64_t mapped_bytes,
                        const std::vector<Request>& requests, const ScoreSettings& settings) {
  int64_t largest = 0;
  const int64_t limit = forward_limit(config, mapped_bytes, settings);
  for (const auto& batch : plan_forwards(config, requests, settings, limit)) {
    int64_t tokens = 0;
    for (const auto& group : batch) {
      tokens += group.tokens();
    }
    largest = std::max(largest, tokens);
  }
  return largest;
}

Scores score_requests(const model::Llama& llama, const std::vector<Request>& requests,
                      const ScoreSettings& settings,
                      const std::function<void(int64_t)>& on_progress) {
  check_same_requests(llama, requests, settings);
  const PrefixBatches batches =
      plan_forwards(llama.config(), requests, settings, limit_on_all_ranks(llama, settings));
  const at::NoGradGuard no_gradients;
  Scores total;
  total.scores.resize(requests.size());
  total.forwards = static_cast<int64_t>(batches.size());
  const size_t ranks = count_of(settings.ranks), rank = rank_of(settings.ranks);
  int64_t done = 0;
  for (size_t begin = 0; begin < batches.size(); begin += ranks) {
    std::vector<PackedBatch> round;  // one a rank
    for (size_t i = begin; i < std::min(begin + ranks, batches.size()); ++i) {
      round.push_back(Packer(requests).pack(batches[i]));
    }
    std::optional<ForwardOutput> own;
    distributed::on_all_ranks(settings.ranks, [&] {
      if (rank < round.size()) {
        own = find_or_run(llama, requests, round[rank], settings, total);
      }
    });
    const std::vector<ForwardOutput> all = gather_forwards(settings.ranks, own);
    distributed::on_all_ranks(settings.ranks, [&] {
      for (size_t i = 0; i < round.size(); ++i) {
        add_output(round[i], all.at(i), settings, total);
        done += static_cast<int64_t>(round[i].requests.size());
        if (on_progress) {
          on_progress(done);
        }
      }
    });
  }
  return total;
}

}  // namespace moe::eval
