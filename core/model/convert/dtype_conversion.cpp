#include "core/model/convert/dtype_conversion.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "core/base/error.h"

namespace moe::model {
namespace {

constexpr size_t kBlockValues = size_t{1} << 20;  // 4 MiB as F32

float load_float(const std::byte* at, io::DType dtype) {
  if (dtype == io::DType::kF32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == io::DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store_float(float value, std::byte* at, io::DType dtype) {
  if (dtype == io::DType::kF32) {
    std::memcpy(at, &value, sizeof value);
    return;
  }
  const uint16_t bits = dtype == io::DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(at, &bits, sizeof bits);
}

// With both types known to the compiler the loop has no branches left.
template <io::DType kFrom, io::DType kTo>
void convert_all(const std::byte* in, std::byte* out, size_t count) {
  const auto in_step = static_cast<size_t>(kFrom == io::DType::kF32 ? 4 : 2);
  const auto out_step = static_cast<size_t>(kTo == io::DType::kF32 ? 4 : 2);
  for (size_t i = 0; i < count; ++i) {
    store_float(load_float(in + i * in_step, kFrom), out + i * out_step, kTo);
  }
}

template <io::DType kFrom>
void convert_from(const std::byte* in, std::byte* out, size_t count, io::DType to) {
  switch (to) {
    case io::DType::kF32:
      return convert_all<kFrom, io::DType::kF32>(in, out, count);
    case io::DType::kBF16:
      return convert_all<kFrom, io::DType::kBF16>(in, out, count);
    default:
      return convert_all<kFrom, io::DType::kF16>(in, out, count);
  }
}

// Returns the index of the first Word of `bytes` with all bits of `exponent` set. Whole blocks are
// looked through without a branch, at the speed of memory.
template <typename Word>
std::optional<size_t> find_all_ones(std::span<const std::byte> bytes, Word exponent) {
  constexpr size_t kBlock = 4096;
  const size_t count = bytes.size() / sizeof(Word);
  const auto is_found = [&](size_t index) {
    Word word = 0;
    std::memcpy(&word, bytes.data() + index * sizeof(Word), sizeof(Word));
    return (word & exponent) == exponent;
  };
  for (size_t begin = 0; begin < count; begin += kBlock) {
    const size_t end = std::min(count, begin + kBlock);
    Word any = 0;
    for (size_t index = begin; index < end; ++index) {
      any |= is_found(index) ? 1 : 0;
    }
    for (size_t index = begin; any != 0 && index < end; ++index) {
      if (is_found(index)) {
        return index;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) {
    return static_cast<uint16_t>(bits >> 16 | 0x40U);
  }
  const uint32_t to_even =
      0x7fffU + (bits >> 16 & 1U);  // a carry into the exponent is the right result
  return static_cast<uint16_t>((bits + to_even) >> 16);
}

float bf16_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

uint16_t float_to_f16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000U;
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {
    return static_cast<uint16_t>(sign | 0x7e00U);
  }
  if (magnitude >= 0x477ff000U) {  // 65520 and above round to infinity
    return static_cast<uint16_t>(sign | 0x7c00U);
  }
  if (magnitude <
      0x38800000U) {  // below 2^-14: subnormal; adding 0.5 lets the hardware round at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const uint32_t to_even = 0xfffU + (magnitude >> 13 & 1U);
  return static_cast<uint16_t>(sign | ((magnitude + to_even - 0x38000000U) >> 13));
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000U} << 16;
  const uint32_t magnitude = bits & 0x7fffU;
  if (magnitude >= 0x7c00U) {
    return std::bit_cast<float>(sign | 0x7f800000U | (magnitude & 0x3ffU) << 13);
  }
  if (magnitude < 0x400U) {  // subnormal: a whole number of 2^-24
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return sign != 0 ? -value : value;
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000U));
}

void convert(std::span<const std::byte> in, io::DType from, std::span<std::byte> out,
             io::DType to) {
  MOE_CHECK(io::is_floating(from) && io::is_floating(to));
  const size_t count = in.size() / static_cast<size_t>(io::dtype_bytes(from));
  MOE_CHECK(out.size() == count * static_cast<size_t>(io::dtype_bytes(to)),
            "{} bytes for {} values", out.size(), count);
  switch (from) {
    case io::DType::kF32:
      return convert_from<io::DType::kF32>(in.data(), out.data(), count, to);
    case io::DType::kBF16:
      return convert_from<io::DType::kBF16>(in.data(), out.data(), count, to);
    default:
      return convert_from<io::DType::kF16>(in.data(), out.data(), count, to);
  }
}

std::optional<size_t> find_non_finite(std::span<const std::byte> bytes, io::DType dtype) {
  MOE_CHECK(io::is_floating(dtype));
  if (dtype == io::DType::kF32) {
    return find_all_ones<uint32_t>(bytes, 0x7f800000U);
  }
  return find_all_ones<uint16_t>(bytes, dtype == io::DType::kBF16 ? 0x7f80U : 0x7c00U);
}

void write_converted(std::span<const std::byte> in, io::DType from, io::SafetensorsWriter& writer,
                     io::DType to) {
  const auto in_step = static_cast<size_t>(io::dtype_bytes(from));
  const auto out_step = static_cast<size_t>(io::dtype_bytes(to));
  std::vector<std::byte> block(std::min(in.size() / in_step, kBlockValues) * out_step);
  for (size_t done = 0; done < in.size();) {
    const size_t values = std::min((in.size() - done) / in_step, kBlockValues);
    const std::span<std::byte> out(block.data(), values * out_step);
    convert(in.subspan(done, values * in_step), from, out, to);
    writer.write(out);
    done += values * in_step;
  }
}

}  // namespace moe::model
