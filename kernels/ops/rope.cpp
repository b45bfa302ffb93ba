// Checks, picks the device. On the CPU, and in f64, it is LibTorch's operations.

#include "kernels/ops/rope.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/cuda_functions.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct Angles {
  Tensor cosine, sine, position;
};

Tensor rotated_by_operations(const Tensor& x, const Angles& angles, const RopeShape& shape) {
  const auto wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Tensor pairs = x.view({shape.tokens, shape.heads, 2, shape.half});
  const Tensor rotating = pairs.narrow(1, 0, shape.rotated).to(wide);
  const auto at_positions = [&](const Tensor& table) {
    return table.to(wide).index_select(0, angles.position).unsqueeze(1);  // [T, 1, A / 2]
  };
  const Tensor c = at_positions(angles.cosine);
  const Tensor s = at_positions(angles.sine) * (shape.backwards ? -1 : 1);
  const Tensor low = rotating.select(2, 0), high = rotating.select(2, 1);
  const Tensor rotated = at::stack({low * c - high * s, high * c + low * s}, 2).to(x.scalar_type());
  const Tensor rest = pairs.narrow(1, shape.rotated, shape.heads - shape.rotated);
  return at::cat({rotated, rest}, 1).view(x.sizes());
}

Tensor rotate(const Tensor& given, const Angles& angles, const RopeShape& shape) {
  const Tensor x = given.contiguous();
  if (!x.is_cuda() || x.scalar_type() == at::kDouble) {
    return rotated_by_operations(x, angles, shape);
  }
  const Tensor y = at::empty_like(x);
  cuda_functions().rope(
      {x.const_data_ptr(), angles.cosine.const_data_ptr<float>(),
       angles.sine.const_data_ptr<float>(), angles.position.const_data_ptr<int32_t>(),
       y.mutable_data_ptr(), shape, x.scalar_type() == at::kBFloat16},
      current_stream(x));
  return y;
}

struct Rope : torch::autograd::Function<Rope> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine, const Tensor& position, int64_t rotated_heads,
                        int64_t heads) {
    context->save_for_backward({cosine, sine, position});
    context->saved_data["rotated"] = rotated_heads;
    context->saved_data["heads"] = heads;
    return rotate(x, {cosine, sine, position},
                  {x.size(0), heads, rotated_heads, cosine.size(1), /*backwards=*/false});
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const RopeShape shape{gradients[0].size(0), context->saved_data["heads"].toInt(),
                          context->saved_data["rotated"].toInt(), saved[0].size(1),
                          /*backwards=*/true};
    return {rotate(gradients[0], {saved[0], saved[1], saved[2]}, shape), {}, {}, {}, {}, {}};
  }
};

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& position,
            int64_t rotated_heads, int64_t head_width) {
  TORCH_CHECK(x.dim() == 2 && head_width > 0 && head_width % 2 == 0 &&
                  x.size(1) % head_width == 0 && rotated_heads >= 0 &&
                  rotated_heads * head_width <= x.size(1) && cosine.dim() == 2 &&
                  cosine.size(1) * 2 == head_width && cosine.sizes() == sine.sizes() &&
                  cosine.scalar_type() == at::kFloat && sine.scalar_type() == at::kFloat &&
                  position.dim() == 1 && position.size(0) == x.size(0) &&
                  position.scalar_type() == at::kInt && cosine.device() == x.device() &&
                  sine.device() == x.device() && position.device() == x.device(),
              "x ", x.sizes(), ", tables ", cosine.sizes(), sine.sizes(), ", positions ",
              position.sizes(), ", ", rotated_heads, " heads of ", head_width);
  return Rope::apply(x, cosine.contiguous(), sine.contiguous(), position.contiguous(),
                     rotated_heads, x.size(1) / head_width);
}

}  // namespace moe::kernels
