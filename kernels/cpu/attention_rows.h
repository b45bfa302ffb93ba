#pragma once
// The rows of a head as the loops of causal attention on the CPU read and write them
// (kernels/cpu/causal_attention.cpp, kernels/cpu/causal_attention_bf16.cpp). Number is float, or
// uint16_t for the bits of bf16.

#include <c10/core/CPUAllocator.h>

#include <cmath>
#include <cstdint>
#include <utility>

#include "kernels/ops/causal_attention.h"

namespace moe::kernels {

inline constexpr int64_t kQueryRows = 48;  // that meet all keys up to their own at a time

// z[0 .. count) becomes exp(z - minus); returns their sum.
float exponentials_below(float* z, int64_t count, float minus);

// dp becomes p * (dp - delta).
void score_gradients(const float* p, float* dp, int64_t count, float delta);

// Rows of one head, `stride` apart -> to [length, width] f32, rotated and scaled.
template <typename Number>
void rotate(const Number* from, int64_t stride, const float* cosine, const float* sine,
            int64_t length, int64_t width, float scale, float* to);

// The transpose of it: gradients of the rotated rows -> of the rows.
template <typename Number>
void rotate_back(const float* from, const float* cosine, const float* sine, int64_t length,
                 int64_t width, float scale, Number* to, int64_t stride);

// Scratch memory for one head, handed out from one allocation in at most sixteen pieces, each of
// which begins at a cache line.
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

// The heads of one group and where they lie.
template <typename Number>
struct Group {
  const AttentionInput<Number>& in;
  int64_t group;

  int64_t width() const { return in.heads.width; }
  int64_t shared() const { return in.heads.heads / in.heads.kv_heads; }
  int64_t head(int64_t index) const { return group * shared() + index; }
  int64_t key_column() const { return (in.heads.heads + group) * width(); }
  int64_t value_column() const { return key_column() + in.heads.kv_heads * width(); }
  float scale() const { return 1.0F / std::sqrt(static_cast<float>(width())); }

  void rotated(int64_t column, float by, float* to) const {
    rotate(in.qkv + column, in.heads.row(), in.cosine, in.sine, in.length, width(), by, to);
  }
};

}  // namespace moe::kernels
