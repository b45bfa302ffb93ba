#pragma once
// Matrix products of activations with weights, y = x w^T (+ bias), for one weight and for one
// weight per expert (grouped GEMM). A weight is one trainable tensor, or several frozen tensors
// that map a checkpoint file.
//
// The dtype of x selects the precision. f32 and f64: everything is computed in that dtype. bf16:
// operands are rounded to bf16, products are summed in f32, y is bf16 (the numerics of
// torch.autocast). The gradient of an f32 master weight is f32 and unrounded, so that gradients of
// micro-batches accumulate without loss. Autograd saves x in its own dtype. A frozen weight may be
// stored in bf16 for any x. CPUs without bf16 instructions multiply the rounded operands in f32;
// the sums may differ by their order.
//
// T tokens, D inner width, N outer width, E experts, R rows in expert order.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

namespace moe::kernels {

// Matrix [N, D] that is stored in consecutive blocks of rows: tensors [N_i, D] with sum N_i = N.
using RowBlocks = std::vector<at::Tensor>;

struct Weight {
  Weight() = default;
  Weight(at::Tensor whole) : tensor(std::move(whole)) {}  // NOLINT: implicit conversion
  // Contiguous CPU tensors in f32, bf16 or f16. They may be in read-only memory.
  explicit Weight(std::vector<RowBlocks> blocks)
      : matrices(std::make_shared<const std::vector<RowBlocks>>(std::move(blocks))) {}

  bool is_one_tensor() const { return matrices == nullptr; }
  int64_t count() const;                  // number of matrices: E, or 1
  RowBlocks matrix(int64_t index) const;  // a single block if the weight is one tensor
  int64_t outer() const;                  // N
  int64_t inner() const;                  // D

  at::Tensor tensor;  // [N, D] or [E, N, D]; undefined if `matrices` is set
  std::shared_ptr<const std::vector<RowBlocks>> matrices;  // 1 or E matrices
};

// Returns y [T, N] in the dtype of x. x [T, D] f32, bf16 or f64; weight [N, D] and bias [N]
// (undefined: none) f32, or f64 if x is; a frozen weight may be bf16. Differentiable in all three.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});
// Overload for a weight in several tensors: CPU only, not differentiable. The result has the bits
// of the overload for one tensor, except in products that LibTorch computes (use_own_gemm() in
// kernels/cpu/gemm.h).
at::Tensor linear(const at::Tensor& x, const Weight& weight, const at::Tensor& bias = {});

// Returns [T, N] f32 (f64 if x is), without rounding the sums to bf16. For logits.
at::Tensor linear_to_f32(const at::Tensor& x, const at::Tensor& weight);

// Returns [T, N] f32: widens x and does not round the weight. Forward and backward do not use TF32.
// For routers.
at::Tensor linear_in_f32(const at::Tensor& x, const at::Tensor& weight);

// Adds x weight^T to `sum` [T, N] f32 without rounding the product. Operands as in linear(). CPU
// only, not differentiable.
void add_linear(at::Tensor& sum, const at::Tensor& x, const Weight& weight);

// Returns `weight` as an operand of one or more products in `type`. GPU: the bf16 working copy if
// the weight has one (bf16_working_copy.h), converted to `type`. CPU: the weight itself, which
// products round block by block.
at::Tensor weight_operand(const at::Tensor& weight, at::ScalarType type);

// Computes out [M, N] = left [M, K] right [K, N] with operands in `type`, or adds the product to
// `out` if `accumulate`. Sums are f32 (f64 for f64) and are rounded to the dtype of `out`. Products
// by gemm() convert the operands block by block; products by LibTorch convert copies.
void matmul_out(at::Tensor& out, const at::Tensor& left, const at::Tensor& right,
                at::ScalarType type, bool accumulate = false);

// matmul_out() with right = rows^T, for a matrix [N, K] in blocks, which are not concatenated. The
// sums do not depend on the block sizes, except in products by LibTorch (use_own_gemm() in
// kernels/cpu/gemm.h).
void weight_matmul_out(at::Tensor& out, const at::Tensor& left, const RowBlocks& rows,
                       at::ScalarType type, bool accumulate = false);

// Returns true if `rows` are on a GPU where `at::_grouped_mm` is one launch (compute capability 9.x
// or 10.x). Other GPUs need one product per expert, with row counts on the host.
bool has_grouped_mm(const at::Tensor& rows);
// Returns true if grouped products of `rows` take Segments::ends: on a CPU, or if has_grouped_mm().
bool can_use_ends(const at::Tensor& rows);

// The rows of each expert in a grouped GEMM: counts on the host, whose sum is at most R, or `ends`
// [E] i32 on the device, where expert e has rows ends[e - 1] .. ends[e] - 1.
struct Segments {
  Segments(std::initializer_list<int64_t> counts) : rows_per_expert(counts) {}
  Segments(std::vector<int64_t> counts, at::Tensor device_ends = {})  // NOLINT: implicit conversion
      : rows_per_expert(std::move(counts)), ends(std::move(device_ends)) {}
  Segments(at::Tensor device_ends) : ends(std::move(device_ends)) {}  // NOLINT: implicit conversion

  std::vector<int64_t> rows_per_expert;
  at::Tensor ends;  // if defined, rows_per_expert is not used

  int64_t experts() const;    // number of experts
  int64_t used_rows() const;  // 0 if it is not known on the host

  // Returns [total, N] in the dtype of `in`: in * weights[e]^T (transposed) or in * weights[e] for
  // the rows of expert e. The remaining rows are 0. With `ends`, `total` must be in.size(0) and the
  // remaining rows are undefined. bf16 and f32 with `ends` use at::_grouped_mm on a CPU or if
  // has_grouped_mm(): nothing is copied to the host, and rows whose size is not a multiple of 16
  // bytes are padded (copied). Other GPUs and dtypes copy the counts to the host.
  at::Tensor product(const at::Tensor& in, const at::Tensor& weights, bool transposed,
                     int64_t total) const;

  // Returns [E, M, N] in the dtype of the weights: left^T * right over the rows of each expert, 0
  // for an expert without rows. If gradient_to_add_to() has a gradient, adds to it and returns an
  // undefined tensor. With `ends` and has_grouped_mm(), sums of bf16 operands are rounded to bf16
  // once before they are widened.
  at::Tensor weight_gradient(const at::Tensor& left, const at::Tensor& right,
                             const at::Tensor& weights) const;
};

// Grouped GEMM: returns [R, N] with y = x weight[e]^T for the rows of expert e. rows [R, D] in
// expert order, weight [E, N, D]. Rows after those of the last expert are 0; with `ends` they are
// undefined, and so is their gradient. Differentiable in rows and weight; the gradient of an expert
// without rows is 0.
at::Tensor grouped_linear(const at::Tensor& rows, const at::Tensor& weight,
                          const Segments& segments);

// Returns [total, N] in the dtype of `in`: in * weights[e]^T for the rows of expert e, then zeros.
at::Tensor grouped_matmul(const at::Tensor& in, const Weight& weights, int64_t total,
                          const std::vector<int64_t>& rows_per_expert);

// Returns the number of rows of each segment, padding included. Blocks until the device of `ends`
// has computed them.
std::vector<int64_t> read_rows_per_expert(const at::Tensor& ends);

// Returns true if the gradient of f32 weights [E, M, N] takes less time as one product per expert,
// which writes f32, than as a grouped product, whose bf16 result must be widened: for large
// experts. Products per expert need the counts on the host.
bool use_per_expert_gradients(const at::Tensor& weights);

}  // namespace moe::kernels
