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

bool rotates_by_kernel(const Tensor& x) { return x.is_cuda() && x.scalar_type() != at::kDouble; }

void rotate_by_kernel(const RopeParts& parts, const Angles& angles, const Tensor& y,
                      const RopeShape& shape) {
  cuda_functions().rope(
      {parts, angles.cosine.const_data_ptr<float>(), angles.sine.const_data_ptr<float>(),
       angles.position.const_data_ptr<int32_t>(), y.mutable_data_ptr(), shape,
       y.scalar_type() == at::kBFloat16},
      current_stream(y));
}

Tensor rotate(const Tensor& given, const Angles& angles, const RopeShape& shape) {
  const Tensor x = given.contiguous();
  if (!rotates_by_kernel(x)) {
    return rotated_by_operations(x, angles, shape);
  }
  Tensor y = at::empty_like(x);
  rotate_by_kernel({{x.const_data_ptr()}, {shape.heads}}, angles, y, shape);
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

// x has `heads` heads of `width` numbers a token.
void check_rotation(const Tensor& x, const Angles& angles, int64_t rotated_heads, int64_t heads,
                    int64_t width) {
  const auto& [cosine, sine, position] = angles;
  TORCH_CHECK(width > 0 && width % 2 == 0 && rotated_heads >= 0 && rotated_heads <= heads &&
                  cosine.dim() == 2 && cosine.size(1) * 2 == width &&
                  cosine.sizes() == sine.sizes() && cosine.scalar_type() == at::kFloat &&
                  sine.scalar_type() == at::kFloat && position.dim() == 1 &&
                  position.size(0) == x.size(0) && position.scalar_type() == at::kInt &&
                  cosine.device() == x.device() && sine.device() == x.device() &&
                  position.device() == x.device(),
              "x ", x.sizes(), ", tables ", cosine.sizes(), sine.sizes(), ", positions ",
              position.sizes(), ", ", rotated_heads, " heads of ", width);
}

void check_packed(const Tensor& x, const Angles& angles, int64_t rotated_heads, int64_t width) {
  TORCH_CHECK(x.dim() == 2 && width > 0 && x.size(1) % width == 0, "x ", x.sizes(), ", heads of ",
              width);
  check_rotation(x, angles, rotated_heads, x.size(1) / width, width);
}

Angles contiguous_angles(const Tensor& cosine, const Tensor& sine, const Tensor& position) {
  return {cosine.contiguous(), sine.contiguous(), position.contiguous()};
}

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& position,
            int64_t rotated_heads, int64_t head_width) {
  check_packed(x, {cosine, sine, position}, rotated_heads, head_width);
  return Rope::apply(x, cosine.contiguous(), sine.contiguous(), position.contiguous(),
                     rotated_heads, x.size(1) / head_width);
}

void rope_(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& position,
           int64_t rotated_heads, int64_t head_width) {
  const Angles angles = contiguous_angles(cosine, sine, position);
  check_packed(x, angles, rotated_heads, head_width);
  TORCH_CHECK(x.is_contiguous(), "x has strides ", x.strides());
  const RopeShape shape{x.size(0), x.size(1) / head_width, rotated_heads, head_width / 2,
                        /*backwards=*/false};
  if (rotates_by_kernel(x)) {
    rotate_by_kernel({{x.const_data_ptr()}, {shape.heads}}, angles, x, shape);
  } else {
    x.copy_(rotated_by_operations(x, angles, shape));
  }
}

Tensor rope_backward(const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& cosine, const Tensor& sine, const Tensor& position) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 3 && key.sizes() == value.sizes() &&
                  query.size(0) == key.size(0) && query.size(2) == key.size(2),
              "gradients of queries ", query.sizes(), ", keys ", key.sizes(), ", values ",
              value.sizes());
  const int64_t tokens = query.size(0), width = query.size(2);
  const int64_t rotated_heads = query.size(1) + key.size(1), heads = rotated_heads + key.size(1);
  const Angles angles = contiguous_angles(cosine, sine, position);
  check_rotation(query, angles, rotated_heads, heads, width);
  const RopeShape shape{tokens, heads, rotated_heads, width / 2, /*backwards=*/true};
  if (!rotates_by_kernel(query)) {
    return rotated_by_operations(at::cat({query, key, value}, 1), angles, shape)
        .view({tokens, heads * width});
  }
  const Tensor parts[] = {query.contiguous(), key.contiguous(), value.contiguous()};
  Tensor grad = at::empty({tokens, heads * width}, query.options());
  rotate_by_kernel(
      {{parts[0].const_data_ptr(), parts[1].const_data_ptr(), parts[2].const_data_ptr()},
       {query.size(1), key.size(1), value.size(1)}},
      angles, grad, shape);
  return grad;
}

}  // namespace moe::kernels
