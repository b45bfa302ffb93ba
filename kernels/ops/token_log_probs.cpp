// A tile of 512 x 1024 logits is 2 MiB, beside 1 MiB of a weight of width 256: it stays in the
// cache and is large enough for the product's full speed. HellaSwag, 100 questions, a LLaMA of
// width 256 with 32000 pieces, one thread of an EPYC: 2.9 CPU seconds, 3.5 with whole logits of 128
// rows.

#include "kernels/ops/token_log_probs.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "kernels/ops/linear.h"
#include "kernels/ops/logsumexp.h"

namespace moe::kernels {

namespace {

using at::Tensor;

constexpr int64_t kTileRows = 512, kTileColumns = 1024;
constexpr int64_t kWholeBytes = int64_t{64} << 20;  // of logits at once, where they are whole

// What is known of a row of logits after some of its columns.
struct RunningRow {
  float most = -INFINITY;
  int64_t argmax = 0;
  double sum = 0;  // of exp(logit - most)

  // `count` logits that begin at column `first`.
  void add(const float* logits, int64_t count, int64_t first) {
    const float largest = row_largest(logits, count);
    if (largest > most) {
      sum *= std::exp(static_cast<double>(most) - largest);
      most = largest;
      argmax = first + (std::find(logits, logits + count, largest) - logits);
    }
    sum += sum_of_exponentials(logits, count, most);
  }

  double logsumexp() const { return most + std::log(sum); }
};

// One block of rows: hidden [m, D], and the tokens asked of it, whose rows count from `first_row`.
class RowBlock {
 public:
  RowBlock(const Tensor& hidden, at::ScalarType type, std::span<const AskedToken> asked,
           int64_t first_row)
      : hidden_(operand(hidden, type)),
        type_(type),
        asked_(asked),
        first_row_(first_row),
        rows_(static_cast<size_t>(hidden.size(0))),
        logits_(asked.size()) {}

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
    for (size_t i = 0; i < asked_.size(); ++i) {
      if (asked_[i].token >= first && asked_[i].token < first + columns) {
        logits_[i] = z[(asked_[i].row - first_row_) * columns + asked_[i].token - first];
      }
    }
  }

  void finish(std::vector<TokenScore>& scores) const {
    for (size_t i = 0; i < asked_.size(); ++i) {
      const RunningRow& row = rows_[static_cast<size_t>(asked_[i].row - first_row_)];
      scores.push_back(
          {static_cast<float>(logits_[i] - row.logsumexp()), row.argmax == asked_[i].token});
    }
  }

 private:
  Tensor hidden_;  // rounded as `type_` says, f32
  at::ScalarType type_;
  std::span<const AskedToken> asked_;
  int64_t first_row_;
  std::vector<RunningRow> rows_;
  std::vector<float> logits_;  // of the asked tokens
};

// The asked tokens of rows begin..end-1.
std::span<const AskedToken> asked_of(std::span<const AskedToken> asked, int64_t begin,
                                     int64_t end) {
  const auto before = [](const AskedToken& one, int64_t row) { return one.row < row; };
  const auto from = std::lower_bound(asked.begin(), asked.end(), begin, before);
  return {from, std::lower_bound(from, asked.end(), end, before)};
}

void check(const Tensor& hidden, const Tensor& weight, std::span<const AskedToken> asked) {
  TORCH_CHECK(hidden.dim() == 2 && weight.dim() == 2 && hidden.size(1) == weight.size(1), "hidden ",
              hidden.sizes(), ", weight ", weight.sizes());
  const auto by_row = [](const AskedToken& a, const AskedToken& b) { return a.row < b.row; };
  TORCH_CHECK(std::is_sorted(asked.begin(), asked.end(), by_row));
  for (const AskedToken& one : asked) {
    TORCH_CHECK(
        one.row >= 0 && one.row < hidden.size(0) && one.token >= 0 && one.token < weight.size(0),
        "token ", one.token, " of row ", one.row);
  }
}

}  // namespace

std::vector<TokenScore> head_scores(const Tensor& hidden, const Tensor& weight, at::ScalarType type,
                                    std::span<const AskedToken> asked) {
  if (hidden.is_cuda()) {
    return head_scores_whole(hidden, weight, type, asked);
  }
  check(hidden, weight, asked);
  std::vector<TokenScore> scores;
  scores.reserve(asked.size());
  for (int64_t row = 0; row < hidden.size(0); row += kTileRows) {
    const int64_t rows = std::min(kTileRows, hidden.size(0) - row);
    RowBlock block(hidden.narrow(0, row, rows), type, asked_of(asked, row, row + rows), row);
    for (int64_t column = 0; column < weight.size(0); column += kTileColumns) {
      const int64_t columns = std::min(kTileColumns, weight.size(0) - column);
      block.add(weight.narrow(0, column, columns), column);
    }
    block.finish(scores);
  }
  return scores;
}

std::vector<TokenScore> head_scores_whole(const Tensor& hidden, const Tensor& weight,
                                          at::ScalarType type, std::span<const AskedToken> asked) {
  check(hidden, weight, asked);
  const int64_t row_bytes = weight.size(0) * static_cast<int64_t>(sizeof(float));
  const int64_t most_rows = std::max<int64_t>(1, kWholeBytes / std::max<int64_t>(1, row_bytes));
  std::vector<TokenScore> scores;
  for (int64_t row = 0; row < hidden.size(0); row += most_rows) {
    const int64_t rows = std::min(most_rows, hidden.size(0) - row);
    const auto here = asked_of(asked, row, row + rows);
    const Tensor logits =
        product_to_f32(operand(hidden.narrow(0, row, rows), type), operand(weight, type).t());
    const RowScores of_rows = row_scores(logits);
    std::vector<int64_t> places, targets;
    for (const AskedToken& one : here) {
      places.push_back(one.row - row);
      targets.push_back((one.row - row) * logits.size(1) + one.token);
    }
    const auto pick = [&](const Tensor& from, const std::vector<int64_t>& at) {
      return from.reshape({-1}).index_select(0, at::tensor(at, at::kLong).to(from.device())).cpu();
    };
    const Tensor logprobs = pick(logits, targets) - pick(of_rows.logsumexp, places);
    const Tensor best = pick(of_rows.argmax, places);
    for (size_t i = 0; i < here.size(); ++i) {
      scores.push_back({logprobs.const_data_ptr<float>()[i],
                        best.const_data_ptr<int64_t>()[i] == here[i].token});
    }
  }
  return scores;
}

}  // namespace moe::kernels
