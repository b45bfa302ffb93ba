// Checks, picks the device, and is the one autograd node of each operation.

#include "kernels/ops/row_ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/ops/device.h"
#include "kernels/ops/expert_rows.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const int32_t* ints(const Tensor& tensor) { return tensor.const_data_ptr<int32_t>(); }

bool is_bf16(const Tensor& tensor) { return tensor.scalar_type() == at::kBFloat16; }

RowsShape shape_of(const RowLayout& layout, int64_t width) {
  return {layout.tokens(), layout.columns(), layout.experts(), width, layout.origin.size(0)};
}

bool is_beside(const Tensor& tensor, const RowLayout& layout) {
  return tensor.device() == layout.position.device();
}

variable_list tensors_of(const RowLayout& layout) {
  return {layout.origin, layout.position, layout.expert, layout.times, layout.ends};
}

RowLayout layout_of(const variable_list& saved, size_t first) {
  return {saved[first], saved[first + 1], saved[first + 2], saved[first + 3], saved[first + 4]};
}

// The references' types: each(float or double).
template <typename Each>
void on_cpu(const Tensor& tensor, Each each) {
  if (tensor.scalar_type() == at::kDouble) {
    each(double{});
  } else {
    TORCH_CHECK(tensor.scalar_type() == at::kFloat, "on the CPU in ", tensor.toString());
    each(float{});
  }
}

Tensor gathered(const Tensor& given, const RowLayout& layout) {
  const Tensor x = given.contiguous();
  const RowsShape shape = shape_of(layout, x.size(1));
  const Tensor rows = at::empty({shape.rows, shape.width}, x.options());
  if (x.is_cuda()) {
    gather_rows_cuda(shape, ints(layout.origin), ints(layout.ends), x.const_data_ptr(),
                     rows.mutable_data_ptr(), is_bf16(x), current_stream(x));
    return rows;
  }
  on_cpu(x, [&](auto type) {
    using Number = decltype(type);
    gather_rows_reference<Number>(shape, ints(layout.origin), ints(layout.ends),
                                  x.const_data_ptr<Number>(), rows.data_ptr<Number>());
  });
  return rows;
}

// `weight` undefined: every one is 1. -> [T, D] of `type`.
Tensor combined(const Tensor& given, const Tensor& weight, const RowLayout& layout,
                at::ScalarType type) {
  const Tensor rows = given.contiguous();
  const RowsShape shape = shape_of(layout, rows.size(1));
  const Tensor y = at::empty({shape.tokens, shape.width}, rows.options().dtype(type));
  if (rows.is_cuda()) {
    combine_rows_cuda(shape, ints(layout.position),
                      weight.defined() ? weight.const_data_ptr<float>() : nullptr,
                      rows.const_data_ptr(), y.mutable_data_ptr(), is_bf16(rows),
                      type == at::kBFloat16, current_stream(rows));
    return y;
  }
  on_cpu(rows, [&](auto number) {
    using Number = decltype(number);
    combine_rows_reference<Number>(shape, ints(layout.position),
                                   weight.defined() ? weight.const_data_ptr<Number>() : nullptr,
                                   rows.const_data_ptr<Number>(), y.data_ptr<Number>());
  });
  return y;
}

struct GatherRows : torch::autograd::Function<GatherRows> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const RowLayout& layout) {
    context->save_for_backward(tensors_of(layout));
    return gathered(x, layout);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const RowLayout layout = layout_of(context->get_saved_variables(), 0);
    return {combined(gradients[0], {}, layout, gradients[0].scalar_type()), {}};
  }
};

struct CombineRows : torch::autograd::Function<CombineRows> {
  static Tensor forward(AutogradContext* context, const Tensor& given, const Tensor& weight,
                        const RowLayout& layout) {
    const Tensor rows = given.contiguous(), weights = weight.contiguous();
    variable_list saved{rows, weights};
    for (const Tensor& tensor : tensors_of(layout)) {
      saved.push_back(tensor);
    }
    context->save_for_backward(saved);
    return combined(rows, weights, layout, weights.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &rows = saved[0], &weight = saved[1], grad_y = gradients[0].contiguous();
    const RowLayout layout = layout_of(saved, 2);
    const RowsShape shape = shape_of(layout, rows.size(1));
    const Tensor grad_rows = at::empty_like(rows), grad_weight = at::empty_like(weight);
    if (rows.is_cuda()) {
      combine_rows_backward_cuda(
          shape, ints(layout.origin), ints(layout.ends), weight.const_data_ptr<float>(),
          rows.const_data_ptr(), grad_y.const_data_ptr<float>(), grad_rows.mutable_data_ptr(),
          grad_weight.data_ptr<float>(), is_bf16(rows), current_stream(rows));
      return {grad_rows, grad_weight, {}};
    }
    on_cpu(rows, [&](auto type) {
      using Number = decltype(type);
      combine_rows_backward_reference<Number>(
          shape, ints(layout.origin), ints(layout.ends), weight.const_data_ptr<Number>(),
          rows.const_data_ptr<Number>(), grad_y.const_data_ptr<Number>(),
          grad_rows.data_ptr<Number>(), grad_weight.data_ptr<Number>());
    });
    return {grad_rows, grad_weight, {}};
  }
};

struct RowGates : torch::autograd::Function<RowGates> {
  static Tensor forward(AutogradContext* context, const Tensor& given, const Tensor& expert,
                        const Tensor& times, int64_t rule, bool straight_through) {
    const Tensor logits = given.contiguous();
    const GateShape shape = gate_shape(logits, expert, rule, straight_through);
    const Tensor weight = at::empty(expert.sizes(), logits.options());
    if (logits.is_cuda()) {
      row_gates_cuda(shape, logits.const_data_ptr<float>(), ints(expert), ints(times),
                     weight.data_ptr<float>(), current_stream(logits));
    } else {
      on_cpu(logits, [&](auto type) {
        using Number = decltype(type);
        row_gates_reference<Number>(shape, logits.const_data_ptr<Number>(), ints(expert),
                                    ints(times), weight.data_ptr<Number>());
      });
    }
    context->save_for_backward({logits, expert, times, weight});
    context->saved_data["rule"] = rule;
    context->saved_data["straight_through"] = straight_through;
    return weight;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor &logits = saved[0], &expert = saved[1], &times = saved[2], &weight = saved[3];
    const GateShape shape = gate_shape(logits, expert, context->saved_data["rule"].toInt(),
                                       context->saved_data["straight_through"].toBool());
    const Tensor upstream = gradients[0].contiguous(), grad = at::empty_like(logits);
    if (logits.is_cuda()) {
      row_gates_backward_cuda(shape, logits.const_data_ptr<float>(), ints(expert), ints(times),
                              weight.const_data_ptr<float>(), upstream.const_data_ptr<float>(),
                              grad.data_ptr<float>(), current_stream(logits));
    } else {
      on_cpu(logits, [&](auto type) {
        using Number = decltype(type);
        row_gates_backward_reference<Number>(shape, logits.const_data_ptr<Number>(), ints(expert),
                                             ints(times), weight.const_data_ptr<Number>(),
                                             upstream.const_data_ptr<Number>(),
                                             grad.data_ptr<Number>());
      });
    }
    return {grad, {}, {}, {}, {}};
  }

  static GateShape gate_shape(const Tensor& logits, const Tensor& expert, int64_t rule,
                              bool straight_through) {
    return {logits.size(0), expert.size(1), logits.size(1), static_cast<GateRule>(rule),
            straight_through};
  }
};

}  // namespace

RowLayout lay_out_rows(const Tensor& token, const Tensor& expert, const Tensor& choice,
                       const Tensor& count, const Tensor& expert_rows, int64_t tokens,
                       int64_t columns) {
  const LayoutShape shape{tokens, columns, expert_rows.size(0), token.size(0)};
  TORCH_CHECK(shape.experts > 0 && tokens * columns <= INT32_MAX &&
                  padded_rows(shape.rows, shape.experts) <= INT32_MAX,
              tokens, " tokens with ", columns, " choices each, ", shape.rows, " rows");
  const Tensor lists[] = {token.contiguous(), expert.contiguous(), choice.contiguous(),
                          count.contiguous(), expert_rows.contiguous()};
  const auto longs = [&](int i) { return lists[i].const_data_ptr<int64_t>(); };
  const PlanRows plan{longs(0), longs(1), longs(2), longs(3), longs(4)};
  const auto options = token.options().dtype(at::kInt);
  const RowLayout layout{
      at::empty({padded_rows(shape.rows, shape.experts)}, options),
      at::empty({tokens, columns}, options), at::empty({tokens, columns}, options),
      at::empty({tokens, columns}, options), at::empty({shape.experts}, options)};
  const LayoutMemory to{layout.origin.data_ptr<int32_t>(), layout.position.data_ptr<int32_t>(),
                        layout.expert.data_ptr<int32_t>(), layout.times.data_ptr<int32_t>(),
                        layout.ends.data_ptr<int32_t>()};
  if (token.is_cuda()) {
    lay_out_cuda(shape, plan, to, current_stream(token));
  } else {
    lay_out_reference(shape, plan, to);
  }
  return layout;
}

Tensor gather_rows(const Tensor& x, const RowLayout& layout) {
  TORCH_CHECK(x.dim() == 2 && x.size(0) == layout.tokens() && is_beside(x, layout), "x ",
              x.sizes());
  return GatherRows::apply(x, layout);
}

Tensor combine_rows(const Tensor& rows, const Tensor& weight, const RowLayout& layout) {
  TORCH_CHECK(rows.dim() == 2 && rows.size(0) == layout.origin.size(0) &&
                  weight.sizes() == layout.position.sizes() && is_beside(rows, layout) &&
                  is_beside(weight, layout),
              "rows ", rows.sizes(), ", weight ", weight.sizes());
  return CombineRows::apply(rows, weight, layout);
}

Tensor row_gates(const Tensor& logits, const RowLayout& layout, GateRule rule,
                 bool straight_through) {
  TORCH_CHECK(logits.dim() == 2 && logits.size(0) == layout.tokens() &&
                  logits.size(1) == layout.experts() && is_beside(logits, layout),
              "logits ", logits.sizes());
  return RowGates::apply(logits, layout.expert, layout.times, static_cast<int64_t>(rule),
                         straight_through);
}

}  // namespace moe::kernels
