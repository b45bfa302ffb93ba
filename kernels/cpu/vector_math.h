#pragma once
// Arithmetic that a compiler turns into vector code inside a plain loop: no branches, no calls. A
// function whose loops use it is compiled once for each instruction set with MOE_VECTOR_CLONES, and
// the loader picks the one that the machine has; arm64 has one set, which every machine of it has.

#include <bit>
#include <cstdint>

// Clang cannot clone a template; it only reads this file, for clang-tidy. The thread sanitizer
// enters its own library from the function that picks, before the loader has linked that library.
#if defined(__clang__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__)
#define MOE_VECTOR_CLONES
#else
#define MOE_VECTOR_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif

namespace moe::kernels {

// exp(x) to 2 units in the last place for x in [-87, 87], and as at the nearer end beyond; NaN
// stays NaN. Cody and Waite's reduction, then the polynomial of Cephes' expf.
inline float vector_exp(float x) {
  constexpr float kMost = 87.0F, kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds
  float clamped = x < -kMost ? -kMost : x;
  clamped = clamped > kMost ? kMost : clamped;
  const float shifted = clamped * 1.44269504F + kRound;
  const float whole = shifted - kRound;
  const float r = (clamped - whole * 0.693359375F) + whole * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  p = p * r * r + r + 1.0F;
  return p * std::bit_cast<float>((std::bit_cast<uint32_t>(shifted) + 127) << 23);
}

// The same for x <= 0, as softmaxes want it: 0 below -87.
inline float vector_exp_negative(float x) { return x < -87.0F ? 0.0F : vector_exp(x); }

inline float widen(float value) { return value; }
inline double widen(double value) { return value; }
inline float widen(uint16_t bf16) { return std::bit_cast<float>(uint32_t{bf16} << 16); }

// The bits of IEEE half precision as f32, which holds all of them exactly.
inline float widen_f16(uint16_t f16) {
  constexpr uint32_t kExponent = 0x7C00U << 13, kBias = 112U << 23;  // 127 - 15
  const uint32_t bits = (uint32_t{f16} & 0x7FFFU) << 13, exponent = bits & kExponent;
  uint32_t value = bits + kBias;
  value = exponent == kExponent ? value + kBias : value;  // infinity and NaN
  // A subnormal is what stands behind the 1 of 2^-14.
  const float subnormal = std::bit_cast<float>(bits + kBias + (1U << 23)) - 0x1p-14F;
  value = exponent == 0 ? std::bit_cast<uint32_t>(subnormal) : value;
  return std::bit_cast<float>(value | (uint32_t{f16} & 0x8000U) << 16);
}

// To nearest, ties to even; NaN stays NaN.
inline void narrow_to(float value, float& out) { out = value; }
inline void narrow_to(double value, double& out) { out = value; }
inline void narrow_to(float value, uint16_t& bf16) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
  bf16 = static_cast<uint16_t>(value == value ? rounded : 0x7FC0);
}

// The same as a float, in lanes of 32 bits throughout.
inline float rounded_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000U;
  return std::bit_cast<float>(value == value ? rounded : 0x7FC00000U);
}

// Joins term(0) .. term(count - 1), which are f32, to one number. Sixteen running results, so that
// vectors of every instruction set do it and the order, and with it the rounding, is the same for
// all of them; the terms past a multiple of sixteen come next, then the sixteen join. `start` is
// neutral under `join`. Total is float, or double where the last joins are to be exact.
template <typename Total, typename Term, typename Join>
[[gnu::always_inline]] inline Total vector_reduce(int64_t count, float start, Term term,
                                                  Join join) {
  constexpr int64_t kLanes = 16;
  float lane[kLanes];
  for (float& each : lane) {
    each = start;
  }
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lane[k] = join(lane[k], term(i + k));
    }
  }
  Total total = start;
  for (int64_t i = whole; i < count; ++i) {
    total = join(total, term(i));
  }
  for (const float part : lane) {
    total = join(total, part);
  }
  return total;
}

template <typename Total, typename Term>
[[gnu::always_inline]] inline Total vector_sum(int64_t count, Term term) {
  return vector_reduce<Total>(count, 0.0F, term,
                              [](auto total, float value) { return total + value; });
}

}  // namespace moe::kernels
