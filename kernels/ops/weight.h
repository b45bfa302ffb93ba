#pragma once
// A weight as products read it: one tensor, which can be trained, or several in different memory,
// as a checkpoint stores them and its file maps them. A layer computes in one product what a
// checkpoint stores as several tensors: queries, keys and values; gate and up of every expert. E
// experts, N outer width, D inner width.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace moe::kernels {

// The rows of a matrix [N, D] in order, in tensors [N_i, D] whose N_i add up to N.
using RowBlocks = std::vector<at::Tensor>;

struct Weight {
  Weight() = default;
  Weight(at::Tensor whole) : tensor(std::move(whole)) {}  // NOLINT: one tensor is a weight
  // Contiguous, f32, bf16 or f16 on the CPU. Products only read them: they may lie in memory that
  // cannot be written.
  explicit Weight(std::vector<RowBlocks> blocks)
      : matrices(std::make_shared<const std::vector<RowBlocks>>(std::move(blocks))) {}

  bool is_one_tensor() const { return matrices == nullptr; }
  int64_t count() const;                  // of matrices: E, or 1
  RowBlocks matrix(int64_t index) const;  // its rows, in one block where it is one tensor
  int64_t outer() const;                  // N of the matrices
  int64_t inner() const;                  // D

  at::Tensor tensor;  // [N, D], or one matrix an expert [E, N, D]; undefined with `matrices`
  std::shared_ptr<const std::vector<RowBlocks>> matrices;  // one, or one an expert
};

}  // namespace moe::kernels
