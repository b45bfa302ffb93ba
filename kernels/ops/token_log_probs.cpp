// A tile of 512 x 1024 logits is 2 MiB, beside 1 MiB of a weight of width 256: it stays in the
// cache and is large enough for the product's full speed. HellaSwag, 100 questions, a LLaMA of
// width 256 with 32000 pieces, one thread of an EPYC: 2.9 CPU seconds, 3.5 with whole logits of 128
// rows.

#include "kernels/ops/token_log_probs.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu/logsumexp.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/logsumexp.h"

namespace moe::kernels {

namespace {

using at::Tensor;

constexpr int64_t kTileRows = 512, kTileColumns = 1024;
constexpr int64_t kWholeBytes = int64_t{64} << 20;  // of logits at once, where they are whole

// The maximum, its index and the sum of exponentials over the columns of a row seen so far.
struct RunningRow {
  float max = -INFINITY;
  int64_t argmax = 0;
  double sum = 0;  // of exp(logit - max)

  // `count` logits that begin at column `first`.
  void add(const float* logits, int64_t count, int64_t first) {
    const float largest = row_max(logits, count);
    if (largest > max) {
      sum *= std::exp(static_cast<double>(max) - largest);
      max = largest;
      argmax = first + (std::find(logits, logits + count, largest) - logits);
    }
    sum += sum_of_exponentials(logits, count, max);
  }

  double logsumexp() const { return max + std::log(sum); }
};

// One block of rows: hidden [m, D], and its targets, whose rows count from `first_row`.
class RowBlock {
 public:
  RowBlock(const Tensor& hidden, at::ScalarType type, std::span<const TargetToken> targets,
           int64_t first_row)
      : hidden_(operand(hidden, type)),
        type_(type),
        targets_(targets),
        first_row_(first_row),
        rows_(static_cast<size_t>(hidden.size(0))),
        logits_(targets.size()) {}

  // weight [N, D], the rows of the tokens from `first` on.
  void add(const Tensor& weight, int64_t first) {
    const int64_t columns = weight.size(0);
    Tensor tile = at::empty({hidden_.size(0), columns}, hidden_.options());  // [m, N]
    operand_product_out(tile, {hidden_, at::kFloat}, {weight.t(), type_});
    const float* z = tile.const_data_ptr<float>();
    at::parallel_for(0, tile.size(0), 16, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        rows_[static_cast<size_t>(row)].add(z + row * columns, columns, first);
      }
    });
    for (size_t i = 0; i < targets_.size(); ++i) {
      if (targets_[i].token >= first && targets_[i].token < first + columns) {
        logits_[i] = z[(targets_[i].row - first_row_) * columns + targets_[i].token - first];
      }
    }
  }

  void finish(std::vector<TokenLogProb>& results) const {
    for (size_t i = 0; i < targets_.size(); ++i) {
      const RunningRow& row = rows_[static_cast<size_t>(targets_[i].row - first_row_)];
      results.push_back(
          {static_cast<float>(logits_[i] - row.logsumexp()), row.argmax == targets_[i].token});
    }
  }

 private:
  Tensor hidden_;  // rounded as `type_` says, f32
  at::ScalarType type_;
  std::span<const TargetToken> targets_;
  int64_t first_row_;
  std::vector<RunningRow> rows_;
  std::vector<float> logits_;  // of the targets
};

// The targets of rows begin..end-1.
std::span<const TargetToken> targets_of(std::span<const TargetToken> targets, int64_t begin,
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
  if (hidden.is_cuda()) {
    return token_log_probs_of_whole_logits(hidden, weight, type, targets);
  }
  check(hidden, weight, targets);
  std::vector<TokenLogProb> results;
  results.reserve(targets.size());
  for (int64_t row = 0; row < hidden.size(0); row += kTileRows) {
    const int64_t rows = std::min(kTileRows, hidden.size(0) - row);
    RowBlock block(hidden.narrow(0, row, rows), type, targets_of(targets, row, row + rows), row);
    for (int64_t column = 0; column < weight.size(0); column += kTileColumns) {
      const int64_t columns = std::min(kTileColumns, weight.size(0) - column);
      block.add(weight.narrow(0, column, columns), column);
    }
    block.finish(results);
  }
  return results;
}

std::vector<TokenLogProb> token_log_probs_of_whole_logits(const Tensor& hidden,
                                                          const Tensor& weight, at::ScalarType type,
                                                          std::span<const TargetToken> targets) {
  check(hidden, weight, targets);
  const int64_t row_bytes = weight.size(0) * static_cast<int64_t>(sizeof(float));
  const int64_t most_rows = std::max<int64_t>(1, kWholeBytes / std::max<int64_t>(1, row_bytes));
  std::vector<TokenLogProb> results;
  for (int64_t row = 0; row < hidden.size(0); row += most_rows) {
    const int64_t rows = std::min(most_rows, hidden.size(0) - row);
    const auto in_block = targets_of(targets, row, row + rows);
    const Tensor logits = product_to_f32(operand(hidden.narrow(0, row, rows), type),
                                         weight_operand(weight, type).t());
    Tensor logsumexp, argmax;
    logsumexp_argmax(logits, logsumexp, argmax);
    std::vector<int64_t> rows_of_targets, cells;  // in `logits`, flattened
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
