// The tile of a matrix unit: with a unit of plain loops, which shows that operands are handed over
// in the unit's order; and with the processor's own where it has one.

#include "kernels/cpu/amx_tile.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cpu/bf16_words.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vector_math.h"
#include "tests/kernels/reference/gemm.h"
#include "tests/support/catch.h"

using namespace moe::kernels;

namespace {

// Intel's manual on TDPBF16PS, volume 2: C[m][n] += sum over k of A[m][2 k] B[k][2 n] and of
// A[m][2 k + 1] B[k][2 n + 1], the even numbers and the odd ones summed apart.
struct PlainUnit {
  static std::array<AmxSquare, 8>& registers() {
    static thread_local std::array<AmxSquare, 8> all;
    return all;
  }
  static float low(float word) { return std::bit_cast<float>(std::bit_cast<uint32_t>(word) << 16); }
  static float high(float word) {
    return std::bit_cast<float>(std::bit_cast<uint32_t>(word) & 0xFFFF0000U);
  }
  template <int kRegister>
  static void zero() {
    registers()[kRegister].fill(0.0F);
  }
  template <int kRegister>
  static void load(const float* from, int64_t row) {
    for (int64_t i = 0; i < kAmxSide; ++i) {
      std::copy_n(from + i * row, kAmxSide, registers()[kRegister].data() + i * kAmxSide);
    }
  }
  template <int kRegister>
  static void store(float* to, int64_t row) {
    for (int64_t i = 0; i < kAmxSide; ++i) {
      std::copy_n(registers()[kRegister].data() + i * kAmxSide, kAmxSide, to + i * row);
    }
  }
  template <int kC, int kA, int kB>
  static void multiply() {
    const AmxSquare &a = registers()[kA], &b = registers()[kB];
    for (size_t m = 0; m < kAmxSide; ++m) {
      for (size_t n = 0; n < kAmxSide; ++n) {
        float even = 0, odd = 0;
        for (size_t k = 0; k < kAmxSide; ++k) {
          const float left = a[m * kAmxSide + k], right = b[k * kAmxSide + n];
          even += low(left) * low(right);
          odd += high(left) * high(right);
        }
        registers()[kC][m * kAmxSide + n] += even + odd;
      }
    }
  }
};

void run_plain(const Tile& tile) { AmxTile<PlainUnit>(tile).run(); }

std::vector<float> whole_numbers(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& value : values) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int64_t>(seed >> 40) % 10);
  }
  return values;
}

// A and B however they are stored and lie, C plain or added to: sums of whole numbers are exact.
void check_products(const TileKernel& kernel) {
  const std::vector<GemmShape> shapes = {{1, 1, 1},      {3, 7, 0},     {1, 33, 31},
                                         {16, 16, 32},   {31, 17, 33},  {32, 32, 64},
                                         {33, 100, 300}, {101, 75, 513}};
  for (const auto& [m, n, k] : shapes) {
    const auto a = whole_numbers(m * k, 1), b = whole_numbers(k * n, 2);
    std::vector<uint16_t> a16(a.size()), b16(b.size());
    f32_to_bf16(a.data(), m * k, a16.data());
    f32_to_bf16(b.data(), k * n, b16.data());
    for (int form = 0; form < 32; ++form) {
      CAPTURE(m, n, k, form);
      const bool accumulate = form & 4;
      MatrixView left{a.data(), form & 1 ? 1 : k, form & 1 ? m : 1, Dtype::kF32RoundedToBF16};
      MatrixView right{b.data(), form & 2 ? 1 : n, form & 2 ? k : 1, Dtype::kF32RoundedToBF16};
      if (form & 8) {
        left = {a16.data(), left.row, left.column, Dtype::kBF16};
      }
      if (form & 16) {
        right = {b16.data(), right.row, right.column, Dtype::kBF16};
      }
      auto slow = whole_numbers(m * n, 3), found = slow;
      moe::test::gemm_reference({m, n, k}, left, right, slow.data(), n, accumulate);
      gemm_with(kernel, {m, n, k}, left, right, found.data(), n, accumulate);
      CHECK((found == slow));
    }
  }
}

}  // namespace

TEST_CASE("the tile of a matrix unit equals plain loops, by a unit of plain loops", "[kernels]") {
  check_products({kAmxSide, kAmxVectors, run_plain, Word::kTwoBF16, kAmxRows});
}

TEST_CASE("the tile of a matrix unit equals plain loops, by this processor's", "[kernels]") {
  const auto kernel = amx_tile_kernel();
  if (!kernel) {
    MOE_SKIP("this processor has no AMX-BF16, or the system lets no process use it");
  }
  check_products(*kernel);
  CHECK(bf16_product_kernel()->run == kernel->run);
}
