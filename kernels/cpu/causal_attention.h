#pragma once
// Causal attention (kernels/ops/causal_attention.h) with bf16 products, which AttentionCpu uses on
// CPUs that have them, and functions shared with the f32 kernels.

#include <c10/core/CPUAllocator.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/ops/causal_attention.h"

namespace moe::kernels {

inline constexpr int64_t kQueryRows = 48;  // query rows of a block of scores

// Replaces z by exp(z - bound), or 0 below -87, and returns the sum. `bound` is the maximum or the
// log-sum-exp of the row.
float exponentials_below(float* z, int64_t count, float bound);

// Replaces dp by p * (dp - delta).
void score_gradients(const float* p, float* dp, int64_t count, float delta);

// Scratch memory of one head, divided into at most sixteen arrays that are aligned to cache lines.
class Workspace {
 public:
  explicit Workspace(int64_t floats)
      : memory_(c10::GetCPUAllocator()->allocate(static_cast<size_t>(floats + 16 * kLine) *
                                                 sizeof(float))),
        next_(static_cast<float*>(memory_.get())) {}
  float* take(int64_t floats) {
    return std::exchange(next_, next_ + (floats + kLine - 1) / kLine * kLine);
  }
  uint16_t* take_bf16(int64_t numbers) {
    return reinterpret_cast<uint16_t*>(take((numbers + 1) / 2));
  }

 private:
  static constexpr int64_t kLine = 16;  // floats of a cache line
  c10::DataPtr memory_;
  float* next_;
};

// The query heads that share one key/value head, and their columns in qkv.
template <typename T>
struct AttentionGroup {
  const AttentionInput<T>& in;
  int64_t group;

  int64_t width() const { return in.heads.width; }
  int64_t shared() const { return in.heads.heads / in.heads.kv_heads; }
  int64_t head(int64_t index) const { return group * shared() + index; }
  int64_t key_column() const { return (in.heads.heads + group) * width(); }
  int64_t value_column() const { return key_column() + in.heads.kv_heads * width(); }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(width())); }

  // Writes the head at `column` to `to` [length, width], rotated and multiplied by `factor`.
  void rotate(int64_t column, float factor, float* to) const;
  // Writes the gradient of the head to `to` (row stride as in qkv), from the gradient `from`
  // [length, width] of the result of rotate().
  void rotate_back(const float* from, float factor, T* to) const;
};

// AttentionCpu::forward() and backward() with bf16 products by one of bf16_tile_kernels().
// Operands are rounded to bf16; sums, softmaxes and log_sum are f32.
//
//   forward   s = q k / sqrt(A), y = (e v) / sum e with e = exp(s - max s)
//   backward  p = exp(s - log sum e), dp = dy v, ds = p (dp - dy y)
//             dv += p dy, dq = ds k, dk += ds q
//
// q (scaled) and k are rounded after their rotation, e, p and ds before their products. v and dy
// are bf16. The sum of e is that of the unrounded e.
void causal_attention_forward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                   int64_t group, uint16_t* out, float* log_sum);
void causal_attention_backward_bf16(const TileKernel& kernel, const AttentionInput<uint16_t>& in,
                                    int64_t group, const uint16_t* out, const float* log_sum,
                                    const uint16_t* grad_out, uint16_t* grad_qkv);

}  // namespace moe::kernels
