// Checks.

#include "kernels/ops/head_argmax.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include "kernels/cpu/bf16_words.h"
#include "kernels/ops/recorded_part.h"

namespace moe::kernels {

using at::Tensor;

bool HeadArgmax::serves(const Tensor& weight) {
  return weight.is_cpu() && weight.dim() == 2 && weight.scalar_type() == at::kBFloat16 &&
         weight.is_contiguous() && weight.numel() > 0 && has_bf16_instructions();
}

HeadArgmax::HeadArgmax(const Tensor& weight) : weight_(weight) {
  TORCH_CHECK(serves(weight), "weight is ", weight.sizes());
  largest_norm_ = largest_row_norm_cpu(static_cast<const uint16_t*>(weight.const_data_ptr()),
                                       weight.size(0), weight.size(1));
}

std::vector<int64_t> HeadArgmax::operator()(const Tensor& hidden) const {
  TORCH_CHECK(hidden.dim() == 2 && hidden.size(1) == weight_.size(1) && hidden.is_cpu() &&
                  hidden.scalar_type() == at::kFloat,
              "hidden is ", hidden.sizes(), ", weight is ", weight_.sizes());
  RECORD_USER_SCOPE_WITH_INPUTS("head", flop_input(2.0 * static_cast<double>(hidden.numel()) *
                                                   static_cast<double>(weight_.size(0))));
  const Tensor rows = hidden.contiguous();
  std::vector<int64_t> tokens(static_cast<size_t>(rows.size(0)));
  head_argmax_cpu({rows.const_data_ptr<float>(),
                   static_cast<const uint16_t*>(weight_.const_data_ptr()), rows.size(0),
                   rows.size(1), weight_.size(0), largest_norm_, tokens.data()});
  return tokens;
}

}  // namespace moe::kernels
