// Registers the CUDA kernels with PyTorch's dispatcher (schemas in kernels/ops/operations.cpp) and
// fills the table of ops/cuda_functions.h. Defines the functions of operations whose only kernel
// is on CUDA; kernels/ops/operations.h defines the others.

#include <torch/library.h>

#include "kernels/ops/operations.h"

extern "C" const moe::kernels::CudaFunctions* moe_cuda_functions() {
  using namespace moe::kernels;
  static const CudaFunctions functions = {
      .gpu_count = gpu_count_cuda,
      .gpu_name = gpu_name_cuda,
      .gpu_peak_bytes = gpu_peak_bytes_cuda,
      .gpu_has_grouped_mm = gpu_has_grouped_mm_cuda,
      .make_nccl = make_nccl_cuda,
  };
  return &functions;
}

namespace moe::kernels {

namespace {

void adamw_on_cuda(const Tensor& gradient, const Tensor& master, const Tensor& mean,
                   const Tensor& square, const OptionalTensor& weight,
                   const OptionalTensor& gradient_scale, double lr, double beta1, double beta2,
                   double eps, double weight_decay, int64_t t) {
  const auto is_like = [&](const Tensor& tensor, at::ScalarType type) {
    return tensor.scalar_type() == type && tensor.is_contiguous() &&
           tensor.sizes() == gradient.sizes() && tensor.device() == gradient.device();
  };
  TORCH_CHECK(gradient.is_contiguous() && is_like(master, at::kFloat) &&
                  is_like(mean, at::kFloat) && is_like(square, at::kFloat) &&
                  (!has_tensor(weight) || is_like(*weight, at::kBFloat16)) && t >= 1,
              "gradient ", gradient.toString(), gradient.sizes(), ", master ", master.toString(),
              master.sizes(), ", update ", t);
  TORCH_CHECK(!has_tensor(gradient_scale) ||
              (gradient_scale->numel() == 1 && gradient_scale->scalar_type() == at::kFloat &&
               gradient_scale->device() == gradient.device()));
  adamw_cuda({input(gradient), uses_bf16(gradient), output(master), output(mean), output(square),
              input(weight), input(gradient_scale), gradient.numel()},
             {lr, beta1, beta2, eps, weight_decay, t}, current_stream_cuda(gradient.device()));
}

Tensor rope_on_cuda(at::TensorList parts, const Tensor& cosine, const Tensor& sine,
                    const Tensor& position, int64_t rotated, bool backwards,
                    const OptionalTensor& out) {
  if (parts[0].scalar_type() == at::kDouble) {
    return rope_by_operations(parts, cosine, sine, position, rotated, backwards, out);
  }
  const int64_t tokens = parts[0].size(0), half = cosine.size(1);
  RopeParts in = {};
  std::vector<Tensor> contiguous;
  int64_t heads = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    contiguous.push_back(parts[i].contiguous());
    in.x[i] = contiguous[i].const_data_ptr();
    in.heads[i] = parts[i].size(1) / (2 * half);
    heads += in.heads[i];
  }
  const Tensor y =
      has_tensor(out) ? *out : at::empty({tokens, heads * 2 * half}, parts[0].options());
  const RopeShape shape{tokens, heads, rotated, half, backwards};
  run<rope_cuda>(y, RopeArgs{in, input(cosine), input(sine), input(position), output(y), shape,
                             y.scalar_type() == at::kBFloat16});
  return y;
}

Tensor router_logits_on_cuda(const Tensor& x, const Tensor& weight) {
  Tensor logits = at::empty({x.size(0), weight.size(0)}, weight.options());
  run<router_logits_cuda>(x, RouterLogitsArgs{input(x), input(weight), output(logits), x.size(0),
                                              x.size(1), weight.size(0), uses_bf16(x)});
  return logits;
}

// Returns the gradients of x and weight; a gradient that is not requested is undefined.
std::tuple<Tensor, Tensor> router_logits_backward_on_cuda(const Tensor& grad, const Tensor& x,
                                                          const Tensor& weight, bool needs_x_grad,
                                                          bool needs_weight_grad) {
  const int64_t experts = weight.size(0), width = weight.size(1);
  Tensor grad_x, grad_weight, strips;
  if (needs_x_grad) {
    grad_x = at::empty(x.sizes(), x.options());
  }
  if (needs_weight_grad) {
    grad_weight = at::empty(weight.sizes(), weight.options());
    strips = at::empty({router_strips(x.size(0), experts), experts, width}, weight.options());
  }
  run<router_logits_backward_cuda>(
      x, RouterLogitsBackwardArgs{input(x), input(weight), input(grad), output(grad_x),
                                  output(grad_weight), output(strips), x.size(0), width, experts,
                                  uses_bf16(x)});
  return {grad_x, grad_weight};
}

}  // namespace

TORCH_LIBRARY_IMPL(moe, CUDA, library) {
  MOE_REGISTER_KERNELS(library, cuda);
  library.impl("segment_rows", &segment_rows_on<segment_rows_cuda>);
  library.impl("adamw_", &adamw_on_cuda);
  library.impl("rope", &rope_on_cuda);
  library.impl("router_logits", &router_logits_on_cuda);
  library.impl("router_logits_backward", &router_logits_backward_on_cuda);
}

}  // namespace moe::kernels
