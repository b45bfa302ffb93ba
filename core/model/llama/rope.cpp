// Frequencies are computed in f32 with the operations and the order of transformers
// (modeling_rope_utils), so that long positions agree to the last bits.

#include "core/model/llama/rope.h"

#include <cmath>
#include <numbers>

#include "core/base/error.h"

namespace moe::model {

using at::Tensor;

namespace {

Tensor plain_frequencies(double theta, int64_t head_dim) {
  const Tensor exponents =
      at::arange(0, head_dim, 2, at::kLong).to(at::kFloat).div(static_cast<double>(head_dim));
  return at::reciprocal(at::pow(theta, exponents));
}

// Dynamic NTK: theta * (factor * length / max - (factor - 1)) ^ (A / (A - 2)) beyond max positions.
double dynamic_theta(const RopeConfig& rope, int64_t head_dim, int64_t max_positions,
                     int64_t length) {
  if (length <= max_positions) {
    return rope.theta;
  }
  const double stretch =
      rope.factor * static_cast<double>(length) / static_cast<double>(max_positions) -
      (rope.factor - 1.0);
  return rope.theta * std::pow(stretch, static_cast<double>(head_dim) / (head_dim - 2.0));
}

// llama3: long waves are stretched by `factor`, short ones kept, those between blended, as
// transformers does.
Tensor llama3_frequencies(const RopeConfig& rope, const Tensor& frequencies) {
  const double old_length = static_cast<double>(rope.original_max_position_embeddings);
  const double low_wave = old_length / rope.low_freq_factor;
  const double high_wave = old_length / rope.high_freq_factor;
  const Tensor wave = at::reciprocal(frequencies).mul(2.0 * std::numbers::pi);
  const Tensor stretched = frequencies / rope.factor;
  const Tensor smooth = (at::reciprocal(wave) * old_length - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  const Tensor blended = (1.0 - smooth) * stretched + smooth * frequencies;
  return at::where(wave > low_wave, stretched, at::where(wave < high_wave, frequencies, blended));
}

RopeTable table_at(const Tensor& positions, const Tensor& frequencies) {
  const Tensor angles = at::outer(positions, frequencies);  // [count, A / 2]
  const Tensor both = at::cat({angles, angles}, 1);
  return {both.cos(), both.sin()};
}

}  // namespace

Tensor rope_frequencies(const RopeConfig& rope, int64_t head_dim, int64_t max_position_embeddings,
                        int64_t sequence_length) {
  switch (rope.type) {
    case RopeType::kDefault:
      return plain_frequencies(rope.theta, head_dim);
    case RopeType::kLinear:
      return plain_frequencies(rope.theta, head_dim) / rope.factor;
    case RopeType::kDynamic:
      return plain_frequencies(
          dynamic_theta(rope, head_dim, max_position_embeddings, sequence_length), head_dim);
    case RopeType::kLlama3:
      return llama3_frequencies(rope, plain_frequencies(rope.theta, head_dim));
  }
  MOE_CHECK(false, "rope type {}", static_cast<int>(rope.type));
}

RopeTable rope_table(const Tensor& frequencies, int64_t first, int64_t count) {
  return table_at(at::arange(first, first + count, frequencies.options()), frequencies);
}

RopeTable rope_table(const Tensor& frequencies, const std::vector<int64_t>& positions) {
  return table_at(at::tensor(positions, at::kLong).to(frequencies.options()), frequencies);
}

Tensor apply_rope(const Tensor& x, const RopeTable& table) {
  const int64_t half = x.size(3) / 2;
  const Tensor rotated = at::cat({x.narrow(3, half, half).neg(), x.narrow(3, 0, half)}, 3);
  return x * table.cosine + rotated * table.sine;
}

}  // namespace moe::model
