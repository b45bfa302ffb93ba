#pragma once
// RoPE as operations on tensors, in double.

#include <ATen/ATen.h>

namespace moe::test {

// x [T, heads * A] at the angles of position [T] in a table; the first `rotated` heads are rotated.
struct RopeCase {
  RopeCase(int64_t tokens, int64_t heads, int64_t rotated, int64_t half)
      : rotated(rotated),
        x(at::randn({tokens, heads * 2 * half}).to(at::kBFloat16).to(at::kFloat)),
        position(at::arange(tokens, at::kInt).mul(17).remainder(40)) {
    const at::Tensor angle = at::rand({40, half}) * 6;
    cosine = angle.cos();
    sine = angle.sin();
  }

  // `values`, like x, rotated in this direction or the opposite one.
  at::Tensor expected(const at::Tensor& values, bool backwards) const {
    const int64_t half = cosine.size(1);
    const at::Tensor heads =
        values.to(at::kDouble).unflatten(1, {values.size(1) / (2 * half), 2 * half});
    const auto angles = [&](const at::Tensor& table) {
      return table.index_select(0, position).unsqueeze(1).to(at::kDouble);
    };
    const at::Tensor c = angles(cosine), s = angles(sine) * (backwards ? -1 : 1);
    const at::Tensor a = heads.narrow(2, 0, half), b = heads.narrow(2, half, half);
    const at::Tensor turned = at::cat({a * c - b * s, b * c + a * s}, 2);
    const int64_t rest = heads.size(1) - rotated;
    return at::cat({turned.narrow(1, 0, rotated), heads.narrow(1, rotated, rest)}, 1).flatten(1);
  }

  int64_t rotated;
  at::Tensor x, position, cosine, sine;
};

// Two products and a sum of numbers below 8; bf16: one more rounding, of 2^-9.
inline bool is_close_rotation(const at::Tensor& actual, const at::Tensor& expected) {
  const double rounding = actual.scalar_type() == at::kFloat ? 0 : 1.0 / (1 << 8);
  return at::allclose(actual.cpu().to(at::kDouble), expected, rounding, 8 * 3.0 / (1 << 24));
}

}  // namespace moe::test
