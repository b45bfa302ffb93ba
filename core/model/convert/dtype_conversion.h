#pragma once
// Weights from one floating type to another, block by block: F32, BF16 and F16, widening exactly,
// narrowing to the nearest with ties to even, as PyTorch does. No tensors, no memory beyond the
// caller's blocks.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "core/io/safetensors_writer.h"

namespace moe::model {

uint16_t float_to_bf16(float value);  // NaN stays NaN (quiet), overflow goes to infinity
uint16_t float_to_f16(float value);
float bf16_to_float(uint16_t bits);
float f16_to_float(uint16_t bits);

// `in` holds n values of `from`, `out` gets n values of `to`; both may be unaligned.
void convert(std::span<const std::byte> in, io::DType from, std::span<std::byte> out, io::DType to);

// Returns the index of the first of the values of type `dtype` in `bytes` that is NaN or infinite.
std::optional<size_t> find_non_finite(std::span<const std::byte> bytes, io::DType dtype);

// Sends a mapped tensor to `writer` as `to`, through a block of at most 4 MiB.
void write_converted(std::span<const std::byte> in, io::DType from, io::SafetensorsWriter& writer,
                     io::DType to);

}  // namespace moe::model
