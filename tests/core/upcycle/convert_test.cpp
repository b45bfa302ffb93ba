// Conversion of weights between F32, F16 and BF16 against the definitions of the formats.

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "core/base/random.h"
#include "core/model/config/folder_tensors.h"
#include "core/upcycle/expert_sources.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

// Returns the value of a 16-bit float by its definition: sign, exponent, fraction.
double value_of(uint16_t bits, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = bits >> fraction_bits & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  const double significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  return sign * std::ldexp(significand, std::max(exponent, 1) - bias - fraction_bits);
}

// Rounds a positive value to the nearer neighbour, to the even one on ties, by bisection.
uint16_t nearest(double value, int fraction_bits) {
  uint16_t low = 0,
           infinity = static_cast<uint16_t>(((1 << (15 - fraction_bits)) - 1) << fraction_bits);
  uint16_t high = infinity;
  while (high - low > 1) {  // value_of grows with the bits
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (value_of(middle, fraction_bits) <= value ? low : high) = middle;
  }
  const double below = value_of(low, fraction_bits);
  // Infinity counts as the next number (IEEE 754, 4.3.1).
  const double above = high == infinity
                           ? 2 * below - value_of(static_cast<uint16_t>(low - 1), fraction_bits)
                           : value_of(high, fraction_bits);
  const double to_low = value - below, to_high = above - value;
  return to_low < to_high || (to_low == to_high && low % 2 == 0) ? low : high;
}

TEST_CASE("every 16-bit float widens to its value and narrows back to itself", "[model][convert]") {
  struct Format {
    int fraction_bits;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
  };
  for (const auto& [fraction_bits, widen, narrow] :
       {Format{7, bf16_to_float, float_to_bf16}, Format{10, f16_to_float, float_to_f16}}) {
    bool is_exact = true;
    for (uint32_t i = 0; i < 0x10000; ++i) {
      const auto bits = static_cast<uint16_t>(i);
      const double value = value_of(bits, fraction_bits);
      const float wide = widen(bits);
      is_exact =
          is_exact && (std::isnan(value) ? std::isnan(wide) && std::isnan(widen(narrow(wide)))
                                         : wide == value && narrow(wide) == bits);
    }
    CHECK(is_exact);
  }
}

TEST_CASE("narrowing rounds to nearest, ties to even, as a bisection does", "[model][convert]") {
  Random random(1, "narrowing");
  std::vector<uint32_t> patterns = {0,          1,          0x7f7fffff, 0x7f800000, 0x00800000,
                                    0x33000000, 0x33000001, 0x38800000, 0x387fffff, 0x477fe000,
                                    0x477fefff, 0x477ff000, 0x3f808000, 0x3f818000, 0x3f801000,
                                    0x3f803000, 0x7f7f8000, 0x7f7f7fff};
  for (int i = 0; i < 20'000; ++i) {
    patterns.push_back(static_cast<uint32_t>(random.below(0x7f800000)));
    patterns.push_back(0x33000000 +
                       static_cast<uint32_t>(random.below(0x15000000)));  // where F16 has numbers
    patterns.push_back(patterns.back() & 0xffff0000U | 0x8000U);          // ties of BF16
    patterns.push_back(patterns.back() & 0xffffe000U | 0x1000U);          // ties of F16
  }
  size_t wrong = 0;
  for (const uint32_t pattern : patterns) {
    const auto value = std::bit_cast<float>(pattern);
    const uint16_t bf16 = nearest(value, 7), f16 = nearest(value, 10);
    wrong += float_to_bf16(value) != bf16 || float_to_bf16(-value) != (bf16 | 0x8000);
    wrong += float_to_f16(value) != f16 || float_to_f16(-value) != (f16 | 0x8000);
  }
  CHECK(wrong == 0);
}

TEST_CASE("convert() equals two conversions by way of F32, between all three types",
          "[model][convert]") {
  const std::vector<float> values = {0.0F, -1.5F, 3.14159F, 65504.0F, 1e-8F, -2.5e-5F, 7.0F};
  const std::vector<io::DType> types = {io::DType::kF32, io::DType::kBF16, io::DType::kF16};
  const auto size = [&](io::DType type) {
    return values.size() * static_cast<size_t>(io::dtype_bytes(type));
  };
  for (const auto from : types) {
    std::vector<std::byte> source(size(from));
    convert(std::as_bytes(std::span(values)), io::DType::kF32, source, from);
    for (const auto to : types) {
      std::vector<std::byte> direct(size(to)), wide(size(io::DType::kF32)), twice(size(to));
      convert(source, from, direct, to);
      convert(source, from, wide, io::DType::kF32);  // exact, so that two steps round once
      convert(wide, io::DType::kF32, twice, to);
      CHECK((direct == twice));
    }
  }
}

TEST_CASE("twice a weight is exact in every type, and an overflow is refused by name",
          "[model][convert]") {
  const test::TempDir dir;
  // Writes numbers of type `from`, times two, as `to`. Returns the stored numbers.
  const auto twice = [&](const std::vector<float>& numbers, io::DType from, io::DType to) {
    const auto bytes_of = [](size_t count, io::DType dtype) {
      return std::vector<std::byte>(count * static_cast<size_t>(io::dtype_bytes(dtype)));
    };
    std::vector<std::byte> in = bytes_of(numbers.size(), from);
    convert(std::as_bytes(std::span(numbers)), io::DType::kF32, in, from);
    const auto columns = static_cast<int64_t>(numbers.size());
    io::SafetensorsWriter parent(dir / "in", {{"w", from, {1, columns}}});
    parent.write(in);
    parent.finish();
    const io::SafetensorsFile mapped(dir / "in");
    const io::TensorInfo info{"w", to, {1, columns}};
    io::SafetensorsWriter writer(dir / "out", {info});
    write_matrix(writer, {info, &mapped, mapped.bytes("w"), from, columns, 2});
    writer.finish();
    const io::SafetensorsFile file(dir / "out");
    std::vector<float> out(numbers.size());
    convert(file.bytes("w"), to, std::as_writable_bytes(std::span(out)), io::DType::kF32);
    return out;
  };
  const std::vector<float> numbers = {0, 1.5F, -0.375F, 0x1p-24F, 12345.0F, 0x1.8p-14F};
  for (const auto dtype : {io::DType::kF32, io::DType::kBF16, io::DType::kF16}) {
    const auto one = dtype == io::DType::kF32 ? numbers : twice(numbers, io::DType::kF32, dtype);
    const auto two = twice(one, dtype, dtype);
    for (size_t i = 0; i < numbers.size(); ++i) {
      CHECK(two[i] == 2 * one[i]);
    }
  }
  const float infinity = std::numeric_limits<float>::infinity();
  CHECK(twice({infinity}, io::DType::kF16, io::DType::kF16)[0] == infinity);
  CHECK_THAT(test::user_error_of([&] { twice({40000}, io::DType::kF16, io::DType::kF16); }),
             test::contains_text("w: 2 times") && test::contains_text("beyond fp16"));
  CHECK(twice({40000}, io::DType::kF16, io::DType::kF32)[0] == 80000);
}

}  // namespace
}  // namespace moe::model
