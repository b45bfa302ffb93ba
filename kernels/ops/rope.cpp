#include "kernels/ops/rope.h"

#include "kernels/ops/operations.h"

namespace moe::kernels {

namespace {

struct Angles {
  Tensor cosine, sine, position;
};

// Rotates the concatenation of `parts` [T, N_i * A] into a new tensor [T, N * A], or into `out`.
Tensor rotate(at::TensorList parts, const Angles& angles, int64_t rotated, bool backwards,
              const OptionalTensor& out = {}) {
  return call<"moe::rope", decltype(rope_by_operations)>(
      parts, angles.cosine.contiguous(), angles.sine.contiguous(), angles.position.contiguous(),
      rotated, backwards, out);
}

struct Rope : torch::autograd::Function<Rope> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& cosine,
                        const Tensor& sine, const Tensor& position, int64_t rotated_heads) {
    context->save_for_backward({cosine, sine, position});
    context->saved_data["rotated"] = rotated_heads;
    return rotate(x, {cosine, sine, position}, rotated_heads, /*backwards=*/false);
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {rotate(gradients[0], {saved[0], saved[1], saved[2]},
                   context->saved_data["rotated"].toInt(), /*backwards=*/true),
            Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

// Throws c10::Error for wrong tables or positions of x, which has `heads` heads per token.
void check_rotation(const Tensor& x, const Angles& angles, int64_t rotated_heads, int64_t heads,
                    int64_t width) {
  const auto& [cosine, sine, position] = angles;
  const auto is_table = [&](const Tensor& table) {
    return table.dim() == 2 && table.size(1) * 2 == width && table.sizes() == cosine.sizes() &&
           table.scalar_type() == at::kFloat && table.device() == x.device();
  };
  TORCH_CHECK(width > 0 && width % 2 == 0 && rotated_heads >= 0 && rotated_heads <= heads &&
                  is_table(cosine) && is_table(sine) && position.dim() == 1 &&
                  position.size(0) == x.size(0) && position.scalar_type() == at::kInt &&
                  position.device() == x.device(),
              "x ", x.sizes(), ", tables ", cosine.sizes(), sine.sizes(), ", positions ",
              position.sizes(), ", ", rotated_heads, " heads of ", width);
}

// check_rotation() for x [T, N * width].
void check_packed(const Tensor& x, const Angles& angles, int64_t rotated_heads, int64_t width) {
  TORCH_CHECK(x.dim() == 2 && width > 0 && x.size(1) % width == 0, "x ", x.sizes(), ", heads of ",
              width);
  check_rotation(x, angles, rotated_heads, x.size(1) / width, width);
}

}  // namespace

Tensor rope(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& position,
            int64_t rotated_heads, int64_t head_width) {
  check_packed(x, {cosine, sine, position}, rotated_heads, head_width);
  return Rope::apply(x, cosine, sine, position, rotated_heads);
}

void rope_(const Tensor& x, const Tensor& cosine, const Tensor& sine, const Tensor& position,
           int64_t rotated_heads, int64_t head_width) {
  const Angles angles{cosine, sine, position};
  check_packed(x, angles, rotated_heads, head_width);
  TORCH_CHECK(x.is_contiguous(), "x has strides ", x.strides());
  rotate(x, angles, rotated_heads, /*backwards=*/false, x);
}

Tensor rope_backward(const Tensor& query, const Tensor& key, const Tensor& value,
                     const Tensor& cosine, const Tensor& sine, const Tensor& position) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 3 && key.sizes() == value.sizes() &&
                  query.size(0) == key.size(0) && query.size(2) == key.size(2),
              "gradients of queries ", query.sizes(), ", keys ", key.sizes(), ", values ",
              value.sizes());
  const int64_t rotated_heads = query.size(1) + key.size(1), heads = rotated_heads + key.size(1);
  const Angles angles{cosine, sine, position};
  check_rotation(query, angles, rotated_heads, heads, query.size(2));
  return rotate({query.flatten(1), key.flatten(1), value.flatten(1)}, angles, rotated_heads,
                /*backwards=*/true);
}

}  // namespace moe::kernels
