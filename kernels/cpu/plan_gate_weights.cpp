// plan_gate_weights.h on the CPU. Threads process blocks of tokens. Results do not depend on the
// number of threads: the block size depends on the number of tokens only, and the sums of the
// blocks are added in order.

#include "kernels/ops/plan_gate_weights.h"

#include <ATen/Parallel.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Minimum work per thread, about ten microseconds: rows; blocks of tokens to count; blocks of
// tokens whose gates are computed.
constexpr int64_t kRowGrain = 4096, kCountedBlocks = 8, kGateBlocks = 2;

// Calls each(block, first token, end token) in parallel, at least `grain` blocks per thread.
template <typename Each>
void for_each_token_block(int64_t tokens, int64_t grain, Each each) {
  constexpr int64_t kTokens = 128;
  const int64_t max_blocks = plan_gate_weights_sums(tokens);
  const int64_t size = std::max(kTokens, (tokens + max_blocks - 1) / max_blocks);
  at::parallel_for(0, (tokens + size - 1) / size, grain, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      each(block, block * size, std::min(tokens, (block + 1) * size));
    }
  });
}

template <typename Number>
void add_atomic(Number& total, Number addend) {
  std::atomic_ref(total).fetch_add(addend, std::memory_order_relaxed);
}
// Adds the counters of a thread to those of all threads.
template <typename Count>
void add_counts(const std::vector<Count>& counts, Count* all) {
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] != 0) {
      add_atomic(all[i], counts[i]);
    }
  }
}

void count_rows(const PlanCountsArgs& args) {
  const PlanRows& plan = args.plan;
  at::parallel_for(0, plan.rows, kRowGrain, [&](int64_t begin, int64_t end) {
    std::vector<int64_t> kinds(static_cast<size_t>((plan.ranks + 1) * kRowKinds));
    for (int64_t row = begin; row < end; ++row) {
      if (plan.expert[row] < plan.experts) {
        const int64_t token = plan.token[row], source_rank = plan.source_rank[token];
        // A choice and a rectification can be the same (token, expert).
        add_atomic(args.count[token * plan.experts + plan.expert[row]],
                   static_cast<float>(plan.count[row]));
        ++kinds[static_cast<size_t>(source_rank * kRowKinds + row_kind(args, row, source_rank))];
      }
    }
    add_counts(kinds, args.counted);
  });
}

// Returns the entropy of g = softmax(a) as sum_j g_j (a_max - a_j) - ln g_max, in which no term is
// negative.
float token_entropy(const float* logits, const float* scores, int64_t experts) {
  const int64_t best = std::max_element(logits, logits + experts) - logits;
  float sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    sum += scores[e] * (logits[best] - logits[e]);
  }
  return sum - std::log(scores[best]);
}

// Writes to = e^(logit - highest) and returns the sum.
MOE_VECTOR_CLONES float exponentials(const float* logits, int64_t count, float highest, float* to) {
  return vector_sum<float>(
      count, [=](int64_t i) { return to[i] = vector_exp_negative(logits[i] - highest); });
}

// Writes to = softmax(logits) and returns the log-sum-exp.
float softmax(const float* logits, int64_t experts, float* to) {
  const float highest = row_max(logits, experts);
  const float sum = exponentials(logits, experts, highest, to);
  for (int64_t e = 0; e < experts; ++e) {
    to[e] /= sum;
  }
  return highest + std::log(sum);
}

// Writes to = n e^a / sum of n e^a over the experts with count n > 0; zeros if there is none.
void normalised_weights(const float* logits, const float* count, int64_t experts, float* to) {
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t e = 0; e < experts; ++e) {
    highest = count[e] > 0 && !(logits[e] <= highest) ? logits[e] : highest;
  }
  float sum = 0;
  for (int64_t e = 0; e < experts; ++e) {
    to[e] = count[e] > 0 ? std::exp(logits[e] - highest) * count[e] : 0.0F;
    sum += to[e];
  }
  for (int64_t e = 0; sum != 0 && e < experts; ++e) {
    to[e] /= sum;
  }
}

void count_choices(const PlanGateWeightsArgs& args) {
  const PlanRows& plan = args.plan;
  const int64_t pairs = plan.ranks * plan.experts;
  std::fill_n(args.chosen, pairs + plan.ranks, 0);
  at::parallel_for(0, plan.tokens, kRowGrain, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> chosen(static_cast<size_t>(pairs + plan.ranks));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t source_rank = plan.source_rank[t];
      if (source_rank < plan.ranks) {
        ++chosen[static_cast<size_t>(pairs + source_rank)];
        const int64_t* experts = args.by_logit + t * plan.experts;
        for (int64_t choice = 0; choice < args.options.lb_choices; ++choice) {
          ++chosen[static_cast<size_t>(source_rank * plan.experts + experts[choice])];
        }
      }
    }
    add_counts(chosen, args.chosen);
  });
}

struct LossTerms {
  double balance = 0, z = 0;
};

// Writes the gates of a token and returns its loss terms. probability [E] is scratch.
LossTerms token_gate_weights(const PlanGateWeightsArgs& args, int64_t t, float* probability) {
  const PlanRows& plan = args.plan;
  const int64_t experts = plan.experts, source_rank = plan.source_rank[t];
  const float *logits = args.logits + t * experts, *count = args.count + t * experts;
  float* combine = args.combine + t * experts;
  const float log_sum = softmax(logits, experts, probability);
  if (args.options.normalise) {
    normalised_weights(logits, count, experts, combine);
  } else {
    std::transform(probability, probability + experts, count, combine, std::multiplies<>());
  }
  if (source_rank >= plan.ranks) {
    return {};
  }
  const float share = token_weight(plan, args.options, args.chosen, source_rank);
  float balance = 0;
  for (int64_t e = 0; e < experts; ++e) {
    balance += balance_factor(plan, args.chosen, source_rank, e, share) * probability[e];
  }
  return {balance, share * log_sum * log_sum};
}

// Calls each(row, index into [T, E]) for the rows in use and others(row) for the rest, in parallel.
template <typename Each, typename Others>
void for_each_plan_row(const PlanRows& plan, Each each, Others others) {
  at::parallel_for(0, plan.rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (plan.expert[row] < plan.experts) {
        each(row, plan.token[row] * plan.experts + plan.expert[row]);
      } else {
        others(row);
      }
    }
  });
}

// Computes the gradient of a token's logits (PlanGateWeightsBackwardArgs). probability [E] is
// scratch.
void token_logit_gradients(const PlanGateWeightsBackwardArgs& args, int64_t t, float* probability) {
  const PlanRows& plan = args.plan;
  const int64_t experts = plan.experts, source_rank = plan.source_rank[t];
  const float* weight = args.combine + t * experts;
  float *grad_gate = args.scratch + t * experts, *to = args.grad_logits + t * experts;
  const float log_sum = softmax(args.logits + t * experts, experts, probability);
  float all = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const float grad = args.grad_combine == nullptr ? 0 : args.grad_combine[t * experts + e];
    grad_gate[e] = (grad_gate[e] + grad) * weight[e];
    all += grad_gate[e];
  }
  const bool through_all = args.options.straight_through || !args.options.normalise;
  const float* basis = through_all ? probability : weight;
  for (int64_t e = 0; e < experts; ++e) {
    to[e] = grad_gate[e] - basis[e] * all;
  }
  if (source_rank >= plan.ranks) {
    return;
  }
  const float share = token_weight(plan, args.options, args.chosen, source_rank);
  const auto factor = [&](int64_t e) {
    return balance_factor(plan, args.chosen, source_rank, e, share);
  };
  const float grad_balance = args.grad_load_balance == nullptr ? 0 : *args.grad_load_balance;
  const float grad_lse = args.grad_z == nullptr ? 0 : 2 * share * log_sum * *args.grad_z;
  float mean = 0;
  for (int64_t e = 0; e < experts; ++e) {
    mean += factor(e) * probability[e];
  }
  for (int64_t e = 0; e < experts; ++e) {
    to[e] += probability[e] * (grad_balance * (factor(e) - mean) + grad_lse);
  }
}

void clear_floats(float* numbers, int64_t count) {
  constexpr int64_t kFloats = 1 << 15;
  at::parallel_for(0, count, kFloats, [&](int64_t begin, int64_t end) {
    std::fill(numbers + begin, numbers + end, 0.0F);
  });
}

}  // namespace

void plan_counts_cpu(const PlanCountsArgs& args) {
  const PlanRows& plan = args.plan;
  const int64_t cells = (plan.ranks + 1) * kRowKinds, experts = plan.experts;
  clear_floats(args.count, plan.tokens * experts);
  std::fill_n(args.counted, cells + 2, 0);
  std::fill_n(args.sums, plan_gate_weights_sums(plan.tokens), 0.0);
  count_rows(args);
  for_each_token_block(plan.tokens, kCountedBlocks, [&](int64_t block, int64_t begin, int64_t end) {
    double entropy = 0;
    int64_t served = 0;
    for (int64_t t = begin; t < end; ++t) {
      const float* count = args.count + t * experts;
      served += std::any_of(count, count + experts, [](float n) { return n > 0; });
      if (plan.source_rank[t] < plan.ranks) {
        entropy += token_entropy(args.logits + t * experts, args.scores + t * experts, experts);
      }
    }
    args.sums[block] = entropy;
    add_atomic(args.counted[cells], served);
  });
  const double entropy =
      std::accumulate(args.sums, args.sums + plan_gate_weights_sums(plan.tokens), 0.0);
  args.counted[cells + 1] = std::bit_cast<int64_t>(entropy);
}

void plan_gate_weights_cpu(const PlanGateWeightsArgs& args) {
  const PlanRows& plan = args.plan;
  const int64_t sums = plan_gate_weights_sums(plan.tokens);
  std::fill_n(args.sums, 2 * sums, 0.0);
  count_choices(args);
  for_each_token_block(plan.tokens, kGateBlocks, [&](int64_t block, int64_t begin, int64_t end) {
    std::vector<float> probability(static_cast<size_t>(plan.experts));
    for (int64_t t = begin; t < end; ++t) {
      const LossTerms terms = token_gate_weights(args, t, probability.data());
      args.sums[2 * block] += terms.balance;
      args.sums[2 * block + 1] += terms.z;
    }
  });
  for_each_plan_row(
      plan,
      [&](int64_t row, int64_t cell) {
        args.weights[row] = args.combine[cell] * row_share(plan, args.count, row);
      },
      [&](int64_t row) { args.weights[row] = 0; });
  LossTerms all;
  for (int64_t block = 0; block < sums; ++block) {
    all.balance += args.sums[2 * block];
    all.z += args.sums[2 * block + 1];
  }
  *args.load_balance = static_cast<float>(all.balance);
  if (args.z != nullptr) {
    *args.z = static_cast<float>(all.z);
  }
}

void plan_gate_weights_backward_cpu(const PlanGateWeightsBackwardArgs& args) {
  const PlanRows& plan = args.plan;
  clear_floats(args.scratch, plan.tokens * plan.experts);
  if (args.grad_weights != nullptr) {
    for_each_plan_row(
        plan,
        [&](int64_t row, int64_t cell) {  // deterministic: at most two addends to 0
          add_atomic(args.scratch[cell], args.grad_weights[row] * row_share(plan, args.count, row));
        },
        [](int64_t) {});
  }
  for_each_token_block(plan.tokens, kGateBlocks, [&](int64_t, int64_t begin, int64_t end) {
    std::vector<float> probability(static_cast<size_t>(plan.experts));
    for (int64_t t = begin; t < end; ++t) {
      token_logit_gradients(args, t, probability.data());
    }
  });
}

}  // namespace moe::kernels
