#include "kernels/ops/token_log_probs.h"

#include <ATen/record_function.h>

#include "kernels/ops/linear.h"
#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

using at::Tensor;

constexpr int64_t kMaxLogitBytes = int64_t{64} << 20;  // of materialised logits
constexpr int64_t kMinRows = 6;  // for which packing the weight is faster than skinny_gemm()

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
  if (!has_kernel<"moe::matmul_out">(hidden.device()) || hidden.size(0) < kMinRows ||
      hidden.size(1) == 0 || is_converted) {
    return token_log_probs_from_logits(hidden, weight, type, targets);
  }
  check(hidden, weight, targets);
  const Tensor left = (type == at::kBFloat16 ? hidden.to(type) : hidden).contiguous();
  std::vector<TokenLogProb> results(targets.size());
  token_log_probs_cpu({matrix_view(left, type), matrix_view(weight, type).transposed(),
                       hidden.size(0), hidden.size(1), weight.size(0), targets, results.data()});
  return results;
}

std::vector<TokenLogProb> token_log_probs_from_logits(const Tensor& hidden, const Tensor& weight,
                                                      at::ScalarType type,
                                                      std::span<const TargetToken> targets) {
  check(hidden, weight, targets);
  const int64_t row_bytes = weight.size(0) * static_cast<int64_t>(sizeof(float));
  const int64_t max_rows = std::max<int64_t>(1, kMaxLogitBytes / std::max<int64_t>(1, row_bytes));
  std::vector<TokenLogProb> results;
  for (int64_t row = 0; row < hidden.size(0); row += max_rows) {
    const int64_t rows = std::min(max_rows, hidden.size(0) - row);
    const auto rest = targets.subspan(results.size());
    const auto in_block = rest.first(static_cast<size_t>(std::count_if(
        rest.begin(), rest.end(), [&](const auto& target) { return target.row < row + rows; })));
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
