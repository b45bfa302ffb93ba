#pragma once
// The roof: what this machine's products reach at the shapes that hold a model's arithmetic, by
// LibTorch's at::mm and by our own (kernels/cpu/gemm.h), in the same run. On a GPU ours are
// LibTorch's; there the products of all experts are timed too, one by one and in one launch.

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "core/bench/timing.h"
#include "core/model/config/config.h"

namespace moe::bench {

// y [m, n] = x [m, k] w [n, k]^T; backward has two products more of as many operations.
struct ProductShape {
  std::string name;
  int64_t m, k, n;
  double flop;  // of all such products of a step, forward and backward
};

// Of one step of `tokens` tokens in rows of `length`, `rows` routed rows in each MoE layer. The
// attention core is not among them.
std::vector<ProductShape> product_shapes(const model::ModelConfig& config, int64_t tokens,
                                         int64_t rows);

// Operations of attention itself, forward and backward, counted at the causal half.
double attention_flop(const model::ModelConfig& config, int64_t tokens, int64_t length);

struct ProductReport {
  ProductShape shape;
  Timing library[3];  // y, d x, d w by at::mm
  Timing ours[3];
};
// In f32 on the host, or of the dtype and on the device that `options` say.
ProductReport bench_product(const ProductShape& shape, int64_t repeats,
                            const at::TensorOptions& options = {});

// Operations a second of products like these, each kind weighted by what it holds, from the best
// times of at::mm.
double roof_flops(const std::vector<ProductReport>& reports);

OrderedJson to_json(const ProductReport& report);

}  // namespace moe::bench
