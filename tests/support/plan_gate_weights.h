#pragma once
// Random plans, and the buffers of kernels/ops/plan_gate_weights.h as tensors.

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <vector>

#include "kernels/ops/plan_gate_weights.h"
#include "tests/kernels/reference/plan_gate_weights.h"

namespace moe::test {

// An arbitrary plan and logits, on one device.
struct GivenPlan {
  at::Tensor token, expert, choice, count, source_rank, logits, scores, by_logit;
  int64_t ranks, k;

  kernels::PlanRows rows() const {
    return {token.const_data_ptr<int64_t>(),
            expert.const_data_ptr<int64_t>(),
            choice.const_data_ptr<int64_t>(),
            count.const_data_ptr<int64_t>(),
            source_rank.const_data_ptr<int64_t>(),
            token.numel(),
            logits.size(0),
            logits.size(1),
            ranks,
            k};
  }
  // Applies `to` to each tensor.
  template <typename To>
  GivenPlan moved(To to) const {
    return {to(token),  to(expert), to(choice),   to(count), to(source_rank),
            to(logits), to(scores), to(by_logit), ranks,     k};
  }
};

// Each token has some of its first k + 1 choices, and sometimes a rectification at one of the same
// experts. Every fifth token is padding, every seventh has no row. Unused rows are last.
inline GivenPlan random_plan(int64_t tokens, int64_t experts, int64_t ranks, int64_t k,
                             double scale) {
  const at::Tensor logits = at::randn({tokens, experts}) * scale;
  const at::Tensor by_logit =
      std::get<1>(at::sort(logits, /*stable=*/true, 1, /*descending=*/true));
  at::Tensor source_rank = at::arange(tokens).remainder(ranks);
  source_rank.masked_fill_(at::arange(tokens).remainder(5) == 3, ranks);
  std::vector<std::array<int64_t, 4>> rows;  // token, expert, choice, count
  for (int64_t t = 0; t < tokens; ++t) {
    if (source_rank[t].item<int64_t>() == ranks || t % 7 == 2) {
      continue;
    }
    int64_t missing = k;
    for (int64_t c = 0; c < std::min(k + 1, experts); ++c) {
      if (missing > 0 && (t + c) % 3 != 0) {
        rows.push_back({t, by_logit[t][c].item<int64_t>(), c, 1});
        --missing;
      }
    }
    if (missing > 0 && t % 2 == 0) {
      rows.push_back({t, by_logit[t][0].item<int64_t>(), k + 1, missing});
    }
  }
  rows.insert(rows.end(), 3, {0, experts, 0, 0});
  const auto column = [&](size_t i) {
    std::vector<int64_t> numbers;
    for (const auto& row : rows) {
      numbers.push_back(row[i]);
    }
    return at::tensor(numbers, at::kLong);
  };
  return {column(0), column(1), column(2), column(3), source_rank, logits, at::softmax(logits, 1),
          by_logit,  ranks,     k};
}

// Makes a buffer of this shape and dtype where `run` writes.
using Room = at::Tensor (*)(at::IntArrayRef, at::ScalarType);

// Returns count [T, E] and counted, as computed by `run` from the arguments.
template <typename Run>
std::vector<at::Tensor> counts(const GivenPlan& given, bool rectifies, bool is_dropless, Room room,
                               Run run) {
  const kernels::PlanRows rows = given.rows();
  const at::Tensor count = room({rows.tokens, rows.experts}, at::kFloat);
  const at::Tensor counted = room({(rows.ranks + 1) * kernels::kRowKinds + 2}, at::kLong);
  const at::Tensor sums = room({kernels::plan_gate_weights_sums(rows.tokens)}, at::kDouble);
  run(kernels::PlanCountsArgs{
      rows, given.logits.const_data_ptr<float>(), given.scores.const_data_ptr<float>(), rectifies,
      is_dropless, count.data_ptr<float>(), counted.data_ptr<int64_t>(), sums.data_ptr<double>()});
  return {count, counted};
}

// combine, weights, chosen, load balance, z.
template <typename Run>
std::vector<at::Tensor> weights(const GivenPlan& given, const kernels::GateOptions& options,
                                const at::Tensor& count, Room room, Run run) {
  const kernels::PlanRows rows = given.rows();
  const std::vector<at::Tensor> to = {room({rows.tokens, rows.experts}, at::kFloat),
                                      room({rows.rows}, at::kFloat),
                                      room({rows.ranks * (rows.experts + 1)}, at::kInt),
                                      room({1}, at::kFloat), room({1}, at::kFloat)};
  const at::Tensor sums = room({2 * kernels::plan_gate_weights_sums(rows.tokens)}, at::kDouble);
  run(kernels::PlanGateWeightsArgs{
      rows, options, given.logits.const_data_ptr<float>(), count.const_data_ptr<float>(),
      given.by_logit.const_data_ptr<int64_t>(), to[0].data_ptr<float>(), to[1].data_ptr<float>(),
      to[2].data_ptr<int32_t>(), sums.data_ptr<double>(), to[3].data_ptr<float>(),
      to[4].data_ptr<float>()});
  return to;
}

// Gradients of rows, combine, load balance and z; undefined: none.
struct Upstream {
  at::Tensor weights, combine, load_balance, z;
};

template <typename Run>
at::Tensor gradient(const GivenPlan& given, const kernels::GateOptions& options,
                    const at::Tensor& count, const std::vector<at::Tensor>& forward,
                    const Upstream& upstream, Room room, Run run) {
  const kernels::PlanRows rows = given.rows();
  const auto pointer = [](const at::Tensor& f32) {
    return f32.defined() ? f32.const_data_ptr<float>() : nullptr;
  };
  const at::Tensor scratch = room({rows.tokens, rows.experts}, at::kFloat);
  const at::Tensor to = room({rows.tokens, rows.experts}, at::kFloat);
  run(kernels::PlanGateWeightsBackwardArgs{
      rows, options, given.logits.const_data_ptr<float>(), count.const_data_ptr<float>(),
      forward[0].const_data_ptr<float>(), forward[2].const_data_ptr<int32_t>(),
      pointer(upstream.weights), pointer(upstream.combine), pointer(upstream.load_balance),
      pointer(upstream.z), scratch.data_ptr<float>(), to.data_ptr<float>()});
  return to;
}

// Returns a buffer on the host full of NaN, or -1 of integers.
inline at::Tensor poisoned_host(at::IntArrayRef shape, at::ScalarType type) {
  return at::isFloatingType(type) ? at::full(shape, std::numeric_limits<double>::quiet_NaN(), type)
                                  : at::full(shape, -1, type);
}

// Compares with the tolerance of f32 sums of at most 256 terms, or exponentials of logits up to 20
// apart.
inline bool is_close_weight(const at::Tensor& actual, const at::Tensor& expected) {
  return at::allclose(actual, expected, 2e-5, 2e-6);
}

inline double entropy_of(const at::Tensor& counted) {
  return std::bit_cast<double>(counted[counted.numel() - 1].item<int64_t>());
}

}  // namespace moe::test
