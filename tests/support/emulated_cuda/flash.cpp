// LibTorch's flash attention over packed documents, which it has on CUDA alone: the same sums
// written out, document by document, in f32. Counted as one launch each.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>

#include "detour.h"

namespace emulated {

namespace {

using at::Tensor;

// One document: heads first, in f32 on the host, keys and values repeated for their query heads.
struct Document {
  Tensor query, key, value;  // [H, S, A]
  Tensor probability;        // [H, S, S]
};

Tensor heads_first(const Tensor& of, int64_t begin, int64_t length, int64_t heads) {
  const Tensor part = of.narrow(0, begin, length).to(at::kFloat).transpose(0, 1);  // [G, S, A]
  return part.repeat_interleave(heads / part.size(0), 0).contiguous();
}

double scale_of(const Tensor& query) { return 1 / std::sqrt(static_cast<double>(query.size(-1))); }

Document document(const Tensor& query, const Tensor& key, const Tensor& value, int64_t begin,
                  int64_t length) {
  const int64_t heads = query.size(1);
  Document one{heads_first(query, begin, length, heads),
               heads_first(key, begin, length, heads),
               heads_first(value, begin, length, heads),
               {}};
  const Tensor later = at::ones({length, length}, at::kBool).triu(1);
  one.probability = (at::bmm(one.query, one.key.transpose(1, 2)) * scale_of(query))
                        .masked_fill(later, -INFINITY)
                        .softmax(-1);
  return one;
}

// Calls each(begin, length) of every document.
template <typename Each>
void for_documents(const Tensor& ends, Each each) {
  const Tensor host = ends.cpu();
  TORCH_CHECK(ends.scalar_type() == at::kInt, "ends are ", ends.toString());
  const auto* end = host.const_data_ptr<int32_t>();
  for (int64_t i = 0; i + 1 < host.numel(); ++i) {
    each(end[i], end[i + 1] - end[i]);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& ends,
    const std::optional<Tensor>& /*ends*/, int64_t /*longest*/, int64_t /*longest*/,
    double /*dropout*/, bool is_causal, bool /*mask*/, std::optional<double> /*scale*/,
    std::optional<int64_t> /*left*/, std::optional<int64_t> /*right*/,
    const std::optional<Tensor>& /*used*/, const std::optional<Tensor>& /*slopes*/) {
  note_launch("aten::_flash_attention_forward");
  const Detour detour;
  TORCH_CHECK(is_causal && ends && query.scalar_type() == at::kBFloat16 && query.stride(-1) == 1);
  const Tensor q = query.cpu(), k = key.cpu(), v = value.cpu();
  const Tensor out = at::zeros(q.sizes(), q.options());
  for_documents(*ends, [&](int64_t begin, int64_t length) {
    const Document one = document(q, k, v, begin, length);
    out.narrow(0, begin, length).copy_(at::bmm(one.probability, one.value).transpose(0, 1));
  });
  const Tensor nothing = at::empty({0}, query.options());
  const Tensor log_sum = at::zeros({q.size(1), q.size(0)}, query.options().dtype(at::kFloat));
  return {out.to(query.device()), log_sum, nothing, nothing, nothing};
}

// The heads of a group share a key: their gradients add up. [H, S, A] -> [S, G, A].
Tensor shared(const Tensor& gradient, int64_t groups) {
  return gradient.view({groups, -1, gradient.size(1), gradient.size(2)}).sum(1).transpose(0, 1);
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& /*out*/, const Tensor& /*log_sum*/, const Tensor& ends, const Tensor& /*ends*/,
    int64_t /*longest*/, int64_t /*longest*/, double /*dropout*/, bool /*is_causal*/,
    const Tensor& /*state*/, const Tensor& /*unused*/, std::optional<double> /*scale*/,
    std::optional<int64_t> /*left*/, std::optional<int64_t> /*right*/) {
  note_launch("aten::_flash_attention_backward");
  const Detour detour;
  const Tensor q = query.cpu(), k = key.cpu(), v = value.cpu(), g = gradient.cpu();
  const Tensor dq = at::zeros(q.sizes(), q.options()), dk = at::zeros(k.sizes(), q.options());
  const Tensor dv = at::zeros(v.sizes(), q.options());
  for_documents(ends, [&](int64_t begin, int64_t length) {
    const Document one = document(q, k, v, begin, length);
    const Tensor upstream = heads_first(g, begin, length, q.size(1));
    const Tensor dp = at::bmm(upstream, one.value.transpose(1, 2));
    const Tensor ds =
        one.probability * (dp - (dp * one.probability).sum(-1, true)) * scale_of(query);
    const auto at_rows = [&](const Tensor& of) { return of.narrow(0, begin, length); };
    at_rows(dq).copy_(at::bmm(ds, one.key).transpose(0, 1));
    at_rows(dk).copy_(shared(at::bmm(ds.transpose(1, 2), one.query), k.size(1)));
    at_rows(dv).copy_(shared(at::bmm(one.probability.transpose(1, 2), upstream), k.size(1)));
  });
  return {dq.to(query.device()), dk.to(query.device()), dv.to(query.device())};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_flash_attention_forward", &forward);
  library.impl("_flash_attention_backward", &backward);
}

}  // namespace emulated
