#pragma once
// Clocks, repeated timings, process statistics, and roofs: times of matrix products by at::mm.

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/base/json.h"
#include "core/base/random.h"
#include "core/model/config/config.h"

namespace moe::bench {

double wall_s();

// Returns the seconds of the benchmark clock: CPU time if one thread computes, because it excludes
// other load on the machine, else wall time. Waits for the queued work of a GPU.
double clock_s(c10::Device device = c10::kCPU);

struct Timing {
  double median_s = 0, best_s = 0, worst_s = 0;

  // Returns the timing multiplied by `count`.
  Timing scaled(double count) const { return {count * median_s, count * best_s, count * worst_s}; }
};

// Returns the median and the extremes of `seconds`, which must not be empty.
Timing make_timing(std::vector<double> seconds);

// Calls `work` once to warm up, then times `repeats` calls.
Timing time_calls(int64_t repeats, const std::function<void()>& work,
                  c10::Device device = c10::kCPU);

OrderedJson to_json(const Timing& timing);  // {median_ms, best_ms, worst_ms}
// Adds "gflops", the rate of `flop` operations, and "share_of_roof", both at the medians.
OrderedJson to_json(const Timing& timing, double flop, const Timing& roof);

// Runs `work` and returns the milliseconds of each part of the model (core/model/llama/timeline.h).
OrderedJson time_parts(const std::function<void()>& work, c10::Device device);

// Returns the versions, machine, threads and date of a measurement on `device`.
OrderedJson environment(const std::string& benchmark, c10::Device device);

uint64_t peak_bytes(c10::Device device);  // of tensors on a GPU, else of resident memory
uint64_t anonymous_bytes();               // resident and backed by no file; 0 if unknown

// Returns `count` uniform ids below `vocabulary`.
std::vector<int64_t> random_tokens(Random& random, int64_t count, int64_t vocabulary);

// y [m, n] = x [m, k] * w [n, k]^T.
struct Product {
  std::string name;
  int64_t m, k, n;
  double count;  // number of such products in a forward pass

  // Returns the floating-point operations of one product.
  double flop() const { return 2.0 * m * k * n; }
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

// Returns the operations of causal attention, forward and backward, in sequences of `length`.
double attention_flop(const model::ModelConfig& config, int64_t tokens, int64_t length);

// Product of a forward pass, and the two of its backward pass: dx = dy * w and dw = dy^T * x.
enum class ProductForm { kForward, kInputGradient, kWeightGradient };
inline constexpr std::array kProductForms = {ProductForm::kForward, ProductForm::kInputGradient,
                                             ProductForm::kWeightGradient};

// Times one product on random operands with the dtype and device of `options`, by at::mm or by our
// own GEMM (kernels/cpu/gemm.h; on a GPU it is at::mm).
Timing time_product(const Product& product, ProductForm form, bool use_own_gemm, int64_t repeats,
                    const at::TensorOptions& options);

// Returns the device and dtype of the roof: on a CPU f32, because LibTorch's bf16 products need an
// allocator that frees by address, unlike kernels/cpu/caching_allocator.h.
at::TensorOptions roof_options(c10::Device device, bool use_bf16);

struct Roof {
  double flop = 0;
  Timing timing;
};

// Times `products` by at::mm. With `backward`, also times the products of the backward pass.
Roof time_roof(const std::vector<Product>& products, bool backward, int64_t repeats,
               const at::TensorOptions& options);

// Returns the config.json of the dense parent of a synthetic model. The model is a mixture with 8
// experts in every layer. S has 35 M parameters, M has 176 M.
OrderedJson synthetic_config(const std::string& name);
inline bool is_synthetic(const std::string& name) { return name == "S" || name == "M"; }

}  // namespace moe::bench
