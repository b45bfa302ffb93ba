#include "kernels/ops/permute.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

constexpr int64_t kGrain = 64;

MOE_VECTOR_CLONES void add_scaled(const float* from, float factor, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] += factor * from[i];
  }
}

template <typename Row>
MOE_VECTOR_CLONES void scale_to(const float* from, float factor, int64_t count, Row* to) {
  for (int64_t i = 0; i < count; ++i) {
    narrow_to(factor * from[i], to[i]);
  }
}

MOE_VECTOR_CLONES float dot(const float* a, const float* b, int64_t count) {
  return vector_sum<float>(count, [=](int64_t i) { return a[i] * b[i]; });
}

// Widens a bf16 row, so that its products are rounded as those of f32.
const float* widened(const uint16_t* row, int64_t count, std::vector<float>& buffer) {
  buffer.resize(static_cast<size_t>(count));
  bf16_to_f32(row, count, buffer.data());
  return buffer.data();
}
const float* widened(const float* row, int64_t /*count*/, std::vector<float>& /*buffer*/) {
  return row;
}

template <typename Args>
size_t row_bytes(const Args& args) {
  return static_cast<size_t>(args.shape.width) * (args.is_bf16 ? 2 : 4);
}

// Unpermutes rows without weights, at most one per token.
void copy_rows(const UnpermuteArgs& args) {
  const size_t bytes = row_bytes(args);
  const auto* rows = static_cast<const char*>(args.rows);
  auto* y = static_cast<char*>(args.y);
  at::parallel_for(0, args.shape.tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::memset(y + begin * bytes, 0, static_cast<size_t>(end - begin) * bytes);
  });
  at::parallel_for(0, args.shape.rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (args.token[row] >= 0) {
        std::memcpy(y + args.token[row] * bytes, rows + row * bytes, bytes);
      }
    }
  });
}

// Rows by token: token t has row[first[t]] .. row[first[t + 1] - 1], in ascending order.
struct RowsByToken {
  std::vector<int64_t> first;  // [T + 1]
  std::vector<int64_t> row;
};

RowsByToken rows_by_token(const UnpermuteArgs& args) {
  const auto tokens = static_cast<size_t>(args.shape.tokens);
  RowsByToken by_token{std::vector<int64_t>(tokens + 2), {}};
  std::vector<int64_t>& next = by_token.first;  // [t + 1]: next index in `row` for token t
  for (int64_t r = 0; r < args.shape.rows; ++r) {
    if (args.token[r] >= 0) {
      ++next[static_cast<size_t>(args.token[r]) + 2];
    }
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  by_token.row.resize(static_cast<size_t>(next.back()));
  for (int64_t r = 0; r < args.shape.rows; ++r) {
    if (args.token[r] >= 0) {
      by_token.row[static_cast<size_t>(next[static_cast<size_t>(args.token[r]) + 1]++)] = r;
    }
  }
  next.pop_back();
  return by_token;
}

// Sums the rows of each token in f32, in parallel over tokens.
template <typename Row, typename Out>
void sum_rows(const UnpermuteArgs& args) {
  const int64_t width = args.shape.width;
  const auto* rows = static_cast<const Row*>(args.rows);
  const auto* weight = static_cast<const float*>(args.weight);
  const RowsByToken by_token = rows_by_token(args);
  at::parallel_for(0, args.shape.tokens, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> wide;
    std::vector<float> buffer(static_cast<size_t>(std::is_same_v<Out, float> ? 0 : width));
    for (int64_t t = begin; t < end; ++t) {
      Out* y = static_cast<Out*>(args.y) + t * width;
      float* sum = buffer.data();
      if constexpr (std::is_same_v<Out, float>) {
        sum = y;
      }
      std::fill_n(sum, width, 0.0F);
      for (int64_t i = by_token.first[static_cast<size_t>(t)];
           i < by_token.first[static_cast<size_t>(t) + 1]; ++i) {
        const int64_t r = by_token.row[static_cast<size_t>(i)];
        add_scaled(widened(rows + r * width, width, wide), args.is_weighted ? weight[r] : 1.0F,
                   width, sum);
      }
      if constexpr (!std::is_same_v<Out, float>) {
        f32_to_bf16(sum, width, y);
      }
    }
  });
}

template <typename Row>
void backward(const UnpermuteBackwardArgs& args) {
  const int64_t width = args.shape.width;
  const auto* rows = static_cast<const Row*>(args.rows);
  const auto* weight = static_cast<const float*>(args.weight);
  const auto* grad_y = static_cast<const float*>(args.grad_y);
  auto* grad_rows = static_cast<Row*>(args.grad_rows);
  auto* grad_weight = static_cast<float*>(args.grad_weight);
  at::parallel_for(0, args.shape.rows, kGrain, [&](int64_t begin, int64_t end) {
    std::vector<float> buffer;
    for (int64_t r = begin; r < end; ++r) {
      if (args.token[r] < 0) {
        grad_weight[r] = 0;
        std::fill_n(grad_rows + r * width, width, Row{});
        continue;
      }
      const float* upstream = grad_y + args.token[r] * width;
      grad_weight[r] = dot(widened(rows + r * width, width, buffer), upstream, width);
      scale_to(upstream, weight[r], width, grad_rows + r * width);
    }
  });
}

}  // namespace

void permute_cpu(const PermuteArgs& args) {
  const size_t bytes = row_bytes(args);
  const auto* x = static_cast<const char*>(args.x);
  auto* rows = static_cast<char*>(args.rows);
  at::parallel_for(0, args.shape.rows, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (args.token[row] >= 0) {
        std::memcpy(rows + row * bytes, x + args.token[row] * bytes, bytes);
      } else {
        std::memset(rows + row * bytes, 0, bytes);
      }
    }
  });
}

void unpermute_cpu(const UnpermuteArgs& args) {
  if (!args.is_weighted && args.shape.columns == 1) {
    return copy_rows(args);
  }
  if (!args.is_bf16) {
    sum_rows<float, float>(args);
  } else if (args.is_weighted) {
    sum_rows<uint16_t, float>(args);
  } else {
    sum_rows<uint16_t, uint16_t>(args);
  }
}

void unpermute_backward_cpu(const UnpermuteBackwardArgs& args) {
  args.is_bf16 ? backward<uint16_t>(args) : backward<float>(args);
}

}  // namespace moe::kernels
