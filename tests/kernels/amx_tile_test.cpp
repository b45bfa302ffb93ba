// The tile of a matrix unit: with an emulated unit of plain loops, which checks the order of the
// operands, and with the unit of the processor if it has one.

#include "kernels/cpu/amx_tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "tests/kernels/reference/gemm.h"

using namespace moe::kernels;

namespace {

// Intel's manual on TDPBF16PS, volume 2: C[m][n] += sum over k of A[m][2 k] B[k][2 n] and of
// A[m][2 k + 1] B[k][2 n + 1], with separate sums of even and odd numbers.
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

}  // namespace

TEST_CASE("the tile of a matrix unit equals plain loops, with an emulated unit") {
  moe::test::check_bf16_kernel({kAmxSide, kAmxVectors, run_plain, Word::kTwoBF16, kAmxRows});
}

TEST_CASE("the tile of a matrix unit equals plain loops, with the unit of this processor") {
  const auto kernel = amx_tile_kernel();
  if (!kernel) {
    MOE_SKIP("this processor has no AMX-BF16, or the system lets no process use it");
  }
  moe::test::check_bf16_kernel(*kernel);
  CHECK(bf16_product_kernel()->run == kernel->run);
}
