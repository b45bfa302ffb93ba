// Checks arguments and chooses between blocks of logits (kernels/cpu/token_log_probs.cpp) and
// materialised logits of some rows at a time.

#include "kernels/ops/token_log_probs.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

using at::Tensor;

constexpr int64_t kMaxLogitBytes = int64_t{64} << 20;  // maximum size of materialised logits
// Minimum rows for which packing blocks of the weight pays off; fewer use skinny_gemm().
constexpr int64_t kMinRows = 6;

std::span<const TargetToken> targets_in_rows(std::span<const TargetToken> targets, int64_t begin,
                                             int64_t end) {
  const auto before = [](const TargetToken& target, int64_t row) { return target.row < row; };
  const auto from = std::lower_bound(targets.begin(), targets.end(), begin, before);
  return {from, std::lower_bound(from, targets.end(), end, before)};
}

void check(const Tensor& hidden, const Tensor& weight, std::span<const TargetToken> targets) {
  TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1), "hidden ",
              hidden.sizes(), ", weight ", weight.sizes());
  const auto by_row = [](const TargetToken& a, const TargetToken& b) { return a.row < b.row; };
  TORCH_CHECK(std::is_sorted(targets.begin(), targets.end(), by_row));
  for (const TargetToken& target : targets) {
    TORCH_CHECK(target.row >= 0 && target.row < hidden.size(0) && target.token >= 0 &&
                    target.token < weight.size(0),
                "token ", target.token, " of row ", target.row);
  }
}

}  // namespace

std::vector<TokenLogProb> token_log_probs(const Tensor& hidden, const Tensor& weight,
                                          at::ScalarType type,
                                          std::span<const TargetToken> targets) {
  RECORD_USER_SCOPE("head");
  // Products in bf16 cannot read f16 in place.
  const bool is_converted = weight.scalar_type() == at::kHalf && type == at::kBFloat16;
  // The kernel is a form of our own GEMM.
  if (!has_kernel<"moe::matmul_out">(hidden.device()) || hidden.size(0) < kMinRows ||
      hidden.size(1) == 0 || is_converted) {
    return token_log_probs_of_whole_logits(hidden, weight, type, targets);
  }
  check(hidden, weight, targets);
  const Tensor left = (type == at::kBFloat16 ? hidden.to(type) : hidden).contiguous();
  std::vector<TokenLogProb> results(targets.size());
  token_log_probs_cpu({matrix_view(left, type), matrix_view(weight, type).transposed(),
                       hidden.size(0), hidden.size(1), weight.size(0), targets, results.data()});
  return results;
}

std::vector<TokenLogProb> token_log_probs_of_whole_logits(const Tensor& hidden,
                                                          const Tensor& weight, at::ScalarType type,
                                                          std::span<const TargetToken> targets) {
  check(hidden, weight, targets);
  const int64_t row_bytes = weight.size(0) * static_cast<int64_t>(sizeof(float));
  const int64_t max_rows = std::max<int64_t>(1, kMaxLogitBytes / std::max<int64_t>(1, row_bytes));
  std::vector<TokenLogProb> results;
  for (int64_t row = 0; row < hidden.size(0); row += max_rows) {
    const int64_t rows = std::min(max_rows, hidden.size(0) - row);
    const auto in_block = targets_in_rows(targets, row, row + rows);
    Tensor logits = at::empty({rows, weight.size(0)}, hidden.options().dtype(at::kFloat));
    matmul_out(logits, hidden.narrow(0, row, rows), weight_operand(weight, type).t(), type);
    Tensor logsumexp, argmax;
    logsumexp_argmax(logits, logsumexp, argmax);
    std::vector<int64_t> rows_of_targets, cells;  // indices into flattened `logits`
    for (const TargetToken& target : in_block) {
      rows_of_targets.push_back(target.row - row);
      cells.push_back((target.row - row) * logits.size(1) + target.token);
    }
    const auto pick = [&](const Tensor& from, const std::vector<int64_t>& at) {
      return from.reshape({-1}).index_select(0, at::tensor(at, at::kLong).to(from.device())).cpu();
    };
    const Tensor logprobs = pick(logits, cells) - pick(logsumexp, rows_of_targets);
    const Tensor best = pick(argmax, rows_of_targets);
    for (size_t i = 0; i < in_block.size(); ++i) {
      results.push_back({logprobs.const_data_ptr<float>()[i],
                         best.const_data_ptr<int64_t>()[i] == in_block[i].token});
    }
  }
  return results;
}

}  // namespace moe::kernels
