#include "kernels/ops/rope.h"

#include "tests/kernels/reference/rope.h"
#include "tests/support/gpu.h"

using at::Tensor;
using moe::kernels::RopeParts;
using moe::kernels::RopeShape;
using moe::test::poisoned;
using moe::test::stream_of;
using moe::test::to_gpu;

namespace {

// Two products and a sum of numbers below 8; bf16: one more rounding, of 2^-9.
bool close(const Tensor& actual, const Tensor& expected) {
  const double rounding = actual.scalar_type() == at::kFloat ? 0 : 1.0 / (1 << 8);
  return at::allclose(actual.cpu().to(at::kFloat), expected, rounding, 8 * 3.0 / (1 << 24));
}

// Tokens of x [tokens, heads * 2 * half], exact in bf16, at positions of a table.
struct Case {
  Case(int64_t tokens, int64_t heads, int64_t rotated, int64_t half, bool backwards)
      : shape{tokens, heads, rotated, half, backwards},
        x(at::randn({tokens, heads * 2 * half}).to(at::kBFloat16).to(at::kFloat)),
        expected(at::empty_like(x)),
        position(at::arange(tokens, at::kInt).mul(17).remainder(40)) {
    const Tensor angle = at::rand({40, half}) * 6;
    cosine = angle.cos();
    sine = angle.sin();
    moe::test::rope_reference(x.const_data_ptr<float>(), cosine.const_data_ptr<float>(),
                              sine.const_data_ptr<float>(), position.const_data_ptr<int32_t>(),
                              expected.data_ptr<float>(), shape);
  }

  void run(const RopeParts& parts, const Tensor& y) const {
    const Tensor c = to_gpu(cosine), s = to_gpu(sine), at_position = to_gpu(position);
    moe::kernels::rope_cuda(
        {parts, c.const_data_ptr<float>(), s.const_data_ptr<float>(),
         at_position.const_data_ptr<int32_t>(), y.data_ptr(), shape, y.dtype() == at::kBFloat16},
        stream_of(y));
  }

  RopeShape shape;
  Tensor x, expected, position, cosine, sine;
};

constexpr int64_t kTokens[] = {0, 1, 31, 33};
constexpr int64_t kHalves[] = {1, 3, 4, 8, 24, 33};  // in bf16 16 bytes are 8 numbers
constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

}  // namespace

TEST_CASE("the rope kernel equals the reference on awkward shapes", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(6);
  for (const int64_t tokens : kTokens) {
    for (const int64_t half : kHalves) {
      for (const bool backwards : {false, true}) {
        CAPTURE(tokens, half, backwards);
        const Case one(tokens, 5, 3, half, backwards);
        for (const auto type : kTypes) {
          const Tensor in = to_gpu(one.x.to(type)), y = poisoned(one.x.sizes(), type);
          one.run({{in.const_data_ptr()}, {5}}, y);
          CHECK(close(y, one.expected));
        }
      }
    }
  }
}

TEST_CASE("the rope kernel rotates heads where they lie, and no others", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(7);
  for (const int64_t tokens : kTokens) {
    for (const int64_t half : kHalves) {
      for (const int64_t rotated : {0, 3, 5}) {
        CAPTURE(tokens, half, rotated);
        const Case one(tokens, 5, rotated, half, /*backwards=*/false);
        for (const auto type : kTypes) {
          const Tensor y = to_gpu(one.x.to(type));
          one.run({{y.const_data_ptr()}, {5}}, y);
          CHECK(close(y, one.expected));
          const int64_t first = rotated * 2 * half, rest = (5 - rotated) * 2 * half;
          CHECK(at::equal(y.cpu().narrow(1, first, rest), one.x.to(type).narrow(1, first, rest)));
        }
      }
    }
  }
}

TEST_CASE("the rope kernel puts three gradients into one", "[kernels][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(8);
  for (const int64_t tokens : kTokens) {
    for (const int64_t half : kHalves) {
      for (const int64_t kv_heads : {1, 3}) {
        CAPTURE(tokens, half, kv_heads);
        const int64_t heads[] = {3, kv_heads, kv_heads};
        const Case one(tokens, 3 + 2 * kv_heads, 3 + kv_heads, half, /*backwards=*/true);
        for (const auto type : kTypes) {
          Tensor parts[3];
          int64_t first = 0;
          for (int i = 0; i < 3; ++i) {
            const int64_t width = heads[i] * 2 * half;
            parts[i] = to_gpu(one.x.to(type).narrow(1, first, width).contiguous());
            first += width;
          }
          const Tensor y = poisoned(one.x.sizes(), type);
          one.run(
              {{parts[0].const_data_ptr(), parts[1].const_data_ptr(), parts[2].const_data_ptr()},
               {heads[0], heads[1], heads[2]}},
              y);
          CHECK(close(y, one.expected));
        }
      }
    }
  }
}
