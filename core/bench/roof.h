#pragma once
// The matrix products of a model and their rate with LibTorch's at::mm, which is the roof that
// benchmarks compare with.

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/bench/timing.h"
#include "core/model/config/config.h"

namespace moe::bench {

// y [m, n] = x [m, k] * w [n, k]^T.
struct Product {
  std::string name;
  int64_t m, k, n;
  double count;  // such products in a forward pass

  double flop() const;  // of one
};

struct ForwardSize {
  int64_t tokens;
  int64_t routed_rows;  // of each MoE layer
  int64_t head_rows;    // rows with logits
  // A dense last layer continues with head_rows rows after its attention (Packed::output_rows).
  bool shortens_last_layer = false;
};

// Returns the products of a forward pass. Experts have routed_rows / E rows each; logits are
// computed in blocks of 512 rows. Attention itself is left out.
std::vector<Product> forward_products(const model::ModelConfig& config, const ForwardSize& size);

// Returns the floating-point operations of attention, forward and backward, for `tokens` tokens in
// sequences of `length`; causal, so half of all pairs count.
double attention_flop(const model::ModelConfig& config, int64_t tokens, int64_t length);

// The product of a forward pass and the two of its backward pass: dx = dy * w, dw = dy^T * x.
enum class ProductForm { kForward, kInputGradient, kWeightGradient };
inline constexpr std::array kProductForms = {ProductForm::kForward, ProductForm::kInputGradient,
                                             ProductForm::kWeightGradient};

// Times one product on random operands with the dtype and device of `options`, by at::mm or by our
// own GEMM (kernels/cpu/gemm.h; on a GPU it is at::mm).
Timing time_product(const Product& product, ProductForm form, bool use_own_gemm, int64_t repeats,
                    const at::TensorOptions& options);

// Returns the device and dtype of the roof. On a CPU it is f32 for bf16 models too: LibTorch's bf16
// products need an allocator that frees by address, which kernels/cpu/caching_allocator.h does not.
at::TensorOptions roof_options(c10::Device device, bool use_bf16);

struct Roof {
  double flop = 0;
  Timing timing;
};

// Times `products` by at::mm, with `backward` those of the backward pass too. Each is timed
// `repeats` times and counted `count` times.
Roof time_roof(const std::vector<Product>& products, bool backward, int64_t repeats,
               const at::TensorOptions& options);

// config.json of the dense model that the synthetic mixtures are made of. S: 35 M parameters as a
// mixture (D 256, F 704, 4 layers); M: 176 M (D 512, F 1376, 8 layers). Both have 8 experts in
// every layer, 8 heads and a vocabulary of 32000.
OrderedJson synthetic_config(const std::string& name);
inline bool is_synthetic(const std::string& name) { return name == "S" || name == "M"; }

}  // namespace moe::bench
