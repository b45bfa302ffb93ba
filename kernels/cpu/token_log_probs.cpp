// Each thread computes blocks of columns and reduces their logits while they are in the L2 cache.
// The blocks of a row are then combined in order: the result does not depend on the number of
// threads.

#include "kernels/ops/token_log_probs.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

// Reduction of the logits of a row in one block of columns.
struct LogitBlock {
  float max = -INFINITY;
  double sum = 0;  // of exp(logit - max)
};

// Returns exp(x) for x <= 0 to 2 ulp by the polynomial of Cephes' exp2f; 2^-125 or less below -87.
// NaN stays NaN. Takes two thirds of the operations of vector_exp().
inline float exp_negative(float x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds
  const float power = x * 1.44269504F;
  const float bounded = power < -126.0F ? -126.0F : power;
  const float shifted = bounded + kRound;
  const float r = bounded - (shifted - kRound);
  float p = 1.535336188319500e-4F;
  p = p * r + 1.339887440266574e-3F;
  p = p * r + 9.618437357674640e-3F;
  p = p * r + 5.550332471162809e-2F;
  p = p * r + 2.402264791363012e-1F;
  p = p * r + 6.931472028550421e-1F;
  p = p * r + 1.0F;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
}

// vector_reduce() with 64 accumulators, to hide the latency, which are joined in a tree.
template <typename Term, typename Join>
[[gnu::always_inline]] inline float reduce_logits(int64_t count, float start, Term term,
                                                  Join join) {
  constexpr int64_t kLanes = 64;
  float lane[kLanes];
  const float rest = reduce_lanes<float>(count, start, term, join, lane);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t k = 0; k < width; ++k) {
      lane[k] = join(lane[k], lane[k + width]);
    }
  }
  return join(rest, lane[0]);
}

MOE_VECTOR_CLONES float max_logit(const float* logits, int64_t count) {
  return reduce_logits(
      count, -INFINITY, [=](int64_t i) { return logits[i]; },
      [](float max, float value) { return value > max ? value : max; });
}

MOE_VECTOR_CLONES float sum_exp(const float* logits, int64_t count, float max) {
  return reduce_logits(
      count, 0.0F, [=](int64_t i) { return exp_negative(logits[i] - max); },
      [](float sum, float value) { return sum + value; });
}

struct TargetLogit {
  float logit = 0;
  bool is_first_max = false;  // in its block of columns
};

// Log-probabilities of the targets of consecutive rows of `hidden`, which are multiplied together.
class RowsLogProbs {
 public:
  RowsLogProbs(const TokenLogProbArgs& args, int64_t first_row, int64_t rows)
      : args_(args),
        first_row_(first_row),
        rows_(rows),
        blocks_((args.vocabulary + kGemmColumns - 1) / kGemmColumns),
        logits_(static_cast<size_t>(rows * blocks_)),
        first_target_(static_cast<size_t>(rows) + 1) {
    const auto before = [](const TargetToken& target, int64_t row) { return target.row < row; };
    for (int64_t row = 0; row <= rows; ++row) {
      first_target_[static_cast<size_t>(row)] =
          std::lower_bound(args.targets.begin(), args.targets.end(), first_row + row, before) -
          args.targets.begin();
    }
    targets_.resize(static_cast<size_t>(first_target_.back() - first_target_.front()));
  }

  // Computes the logits and reduces each block of columns.
  void reduce_blocks() {
    at::parallel_for(0, blocks_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end; ++block) {
        const int64_t column = block * kGemmColumns;
        const int64_t columns = std::min(kGemmColumns, args_.vocabulary - column);
        const ColumnBlock weight{args_.weight.from(0, column), columns};
        gemm_row_blocks({rows_, columns, args_.width}, args_.hidden.from(first_row_, 0),
                        {&weight, 1}, [&](int64_t first, int64_t rows, const float* logits) {
                          for (int64_t row = 0; row < rows; ++row) {
                            reduce(first + row, block, logits + row * columns, columns);
                          }
                        });
      }
    });
  }

  void write_results() const {
    for (int64_t row = 0; row < rows_; ++row) {
      const LogitBlock* blocks = logits_.data() + row * blocks_;
      float max = -INFINITY;
      int64_t argmax_block = 0;  // the first block with the largest logit
      for (int64_t block = 0; block < blocks_; ++block) {
        argmax_block = blocks[block].max > max ? block : argmax_block;
        max = std::max(max, blocks[block].max);
      }
      double sum = 0;
      for (int64_t block = 0; block < blocks_; ++block) {
        sum += blocks[block].sum * exp_negative(blocks[block].max - max);
      }
      const double logsumexp = max + std::log(sum);
      for (int64_t i = first_target(row); i < first_target(row + 1); ++i) {
        const auto& [logit, is_first_max] = targets_[static_cast<size_t>(i - first_target(0))];
        const int64_t block = args_.targets[static_cast<size_t>(i)].token / kGemmColumns;
        args_.results[i] = {static_cast<float>(logit - logsumexp),
                            is_first_max && block == argmax_block};
      }
    }
  }

 private:
  int64_t first_target(int64_t row) const { return first_target_[static_cast<size_t>(row)]; }

  // Reduces the logits of a row in one block of columns.
  void reduce(int64_t row, int64_t block, const float* logits, int64_t columns) {
    const float max = max_logit(logits, columns);
    logits_[static_cast<size_t>(row * blocks_ + block)] = {max, sum_exp(logits, columns, max)};
    for (int64_t i = first_target(row); i < first_target(row + 1); ++i) {
      const int64_t column = args_.targets[static_cast<size_t>(i)].token - block * kGemmColumns;
      if (column >= 0 && column < columns) {
        targets_[static_cast<size_t>(i - first_target(0))] = {
            logits[column], std::find(logits, logits + columns, max) == logits + column};
      }
    }
  }

  const TokenLogProbArgs& args_;
  int64_t first_row_, rows_, blocks_;
  std::vector<LogitBlock> logits_;     // [rows, blocks]
  std::vector<int64_t> first_target_;  // [rows + 1], first target of each row
  std::vector<TargetLogit> targets_;   // of these rows
};

}  // namespace

void token_log_probs_cpu(const TokenLogProbArgs& args) {
  // Each block of the weight is packed once per max_rows. With several blocks of depth
  // gemm_row_blocks() stores the sums of all rows.
  const int64_t max_rows = args.width > kGemmDepth ? 512 : 2048;
  for (int64_t row = 0; row < args.rows; row += max_rows) {
    RowsLogProbs rows(args, row, std::min(max_rows, args.rows - row));
    rows.reduce_blocks();
    rows.write_results();
  }
}

}  // namespace moe::kernels
