// f32 on the CPU is ours: LibTorch's index_add sets up a loop for every row. The rest is
// LibTorch's.

#include "kernels/ops/token_rows.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/cpu/vector_math.h"

namespace moe::kernels {

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kGrain = 64;

bool is_ours(const Tensor& values) { return values.is_cpu() && values.scalar_type() == at::kFloat; }

MOE_VECTOR_CLONES void add_scaled(const float* from, float by, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] += by * from[i];
  }
}

MOE_VECTOR_CLONES void scale_to(const float* from, float by, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = by * from[i];
  }
}

MOE_VECTOR_CLONES float dot(const float* a, const float* b, int64_t count) {
  constexpr int64_t kLanes = 16;
  float lane[kLanes] = {};
  const int64_t whole = count / kLanes * kLanes;
  for (int64_t i = 0; i < whole; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) {
      lane[k] += a[i + k] * b[i + k];
    }
  }
  float sum = 0;
  for (int64_t i = whole; i < count; ++i) {
    sum += a[i] * b[i];
  }
  for (const float part : lane) {
    sum += part;
  }
  return sum;
}

// y_t = sum of gate_r row_r; `gate` may be undefined: ones. Threads share columns, so that a sum
// has one order, in whole blocks: which columns end a vector loop, and so how they are rounded, is
// the same for any number of threads.
Tensor sum_rows(const Tensor& rows, const Tensor& gate, const Tensor& token, int64_t tokens) {
  const Tensor in = rows.contiguous(), index = token.contiguous();
  const Tensor by = gate.defined() ? gate.contiguous() : gate;
  const int64_t count = in.size(0), width = in.size(1);
  Tensor out = at::empty({tokens, width}, in.options());
  const float* from = in.const_data_ptr<float>();
  const float* weight = by.defined() ? by.const_data_ptr<float>() : nullptr;
  const int64_t* to = index.const_data_ptr<int64_t>();
  float* sum = out.data_ptr<float>();
  at::parallel_for(0, (width + kGrain - 1) / kGrain, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = first * kGrain, end = std::min(width, last * kGrain);
    for (int64_t t = 0; t < tokens; ++t) {
      std::fill(sum + t * width + begin, sum + t * width + end, 0.0F);
    }
    for (int64_t r = 0; r < count; ++r) {
      add_scaled(from + r * width + begin, weight == nullptr ? 1.0F : weight[r], end - begin,
                 sum + to[r] * width + begin);
    }
  });
  return out;
}

struct GatherRows : torch::autograd::Function<GatherRows> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& token) {
    RECORD_USER_SCOPE("permute");
    context->save_for_backward({token});
    context->saved_data["tokens"] = x.size(0);
    return x.index_select(0, token);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const Tensor token = context->get_saved_variables()[0], &grad = gradients[0];
    const int64_t tokens = context->saved_data["tokens"].toInt();
    if (is_ours(grad)) {
      return {sum_rows(grad, {}, token, tokens), Tensor()};
    }
    return {at::zeros({tokens, grad.size(1)}, grad.options()).index_add_(0, token, grad), Tensor()};
  }
};

struct CombineRows : torch::autograd::Function<CombineRows> {
  static Tensor forward(AutogradContext* context, const Tensor& rows, const Tensor& gate,
                        const Tensor& token, int64_t tokens) {
    RECORD_USER_SCOPE("combine");
    context->save_for_backward({rows, gate, token});
    return sum_rows(rows, gate, token, tokens);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const Tensor rows = saved[0].contiguous(), gate = saved[1].contiguous();
    const Tensor token = saved[2].contiguous(), grad = gradients[0].contiguous();
    const int64_t count = rows.size(0), width = rows.size(1);
    const Tensor grad_rows = at::empty_like(rows), grad_gate = at::empty_like(gate);
    const float *row = rows.const_data_ptr<float>(), *weight = gate.const_data_ptr<float>();
    const float* dy = grad.const_data_ptr<float>();
    const int64_t* of = token.const_data_ptr<int64_t>();
    float *d_row = grad_rows.data_ptr<float>(), *d_gate = grad_gate.data_ptr<float>();
    at::parallel_for(0, count, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* upstream = dy + of[r] * width;
        d_gate[r] = dot(row + r * width, upstream, width);
        scale_to(upstream, weight[r], width, d_row + r * width);
      }
    });
    return {grad_rows, grad_gate, Tensor(), Tensor()};
  }
};

}  // namespace

Tensor gather_rows(const Tensor& x, const Tensor& token) { return GatherRows::apply(x, token); }

Tensor combine_rows(const Tensor& rows, const Tensor& gate, const Tensor& token, int64_t tokens) {
  TORCH_CHECK(rows.dim() == 2 && gate.dim() == 1 && gate.size(0) == rows.size(0) &&
                  token.size(0) == rows.size(0),
              "rows ", rows.sizes(), ", gate ", gate.sizes(), ", token ", token.sizes());
  const Tensor wide = rows.to(gate.scalar_type());
  if (is_ours(wide)) {
    return CombineRows::apply(wide, gate, token, tokens);
  }
  const Tensor weighted = wide * gate.unsqueeze(1);
  return at::zeros({tokens, rows.size(1)}, weighted.options()).index_add(0, token, weighted);
}

}  // namespace moe::kernels
