// LibTorch's flash attention over packed documents, which it has on CUDA only, computed in f32
// document by document. The causal mask is aligned to the last key, as
// FlashAttention's is since 2.1.

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <vector>

#include "detour.h"

namespace emulated {

namespace {

using at::Tensor;

// One document: heads first, in f32 on the host, keys and values repeated for their query heads.
struct Document {
  Tensor query, key, value;  // [H, S, A], [H, P, A], [H, P, A]
  Tensor probability;        // [H, S, P]
};

struct Rows {
  int64_t begin = 0, length = 0;
};

Tensor heads_first(const Tensor& of, const Rows& rows, int64_t heads) {
  const Tensor part =
      of.narrow(0, rows.begin, rows.length).to(at::kFloat).transpose(0, 1);  // [G, S, A]
  return part.repeat_interleave(heads / part.size(0), 0).contiguous();
}

double scale_of(const Tensor& query) { return 1 / std::sqrt(static_cast<double>(query.size(-1))); }

Document document(const Tensor& query, const Tensor& key, const Tensor& value, const Rows& own,
                  const Rows& seen) {
  const int64_t heads = query.size(1);
  Document one{heads_first(query, own, heads),
               heads_first(key, seen, heads),
               heads_first(value, seen, heads),
               {}};
  const Tensor later =
      at::ones({own.length, seen.length}, at::kBool).triu(1 + seen.length - own.length);
  one.probability = (at::bmm(one.query, one.key.transpose(1, 2)) * scale_of(query))
                        .masked_fill(later, -INFINITY)
                        .softmax(-1);
  return one;
}

std::vector<Rows> rows_of(const Tensor& ends) {
  const Tensor host = ends.cpu();
  TORCH_CHECK(ends.scalar_type() == at::kInt, "ends are ", ends.toString());
  const auto* end = host.const_data_ptr<int32_t>();
  std::vector<Rows> documents;
  for (int64_t i = 0; i + 1 < host.numel(); ++i) {
    documents.push_back({end[i], end[i + 1] - end[i]});
  }
  return documents;
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> forward(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& ends,
    const std::optional<Tensor>& key_ends, int64_t longest, int64_t longest_keys,
    double /*dropout*/, bool is_causal, bool /*mask*/, std::optional<double> /*scale*/,
    std::optional<int64_t> /*left*/, std::optional<int64_t> /*right*/,
    const std::optional<Tensor>& /*used*/, const std::optional<Tensor>& /*slopes*/) {
  const Detour detour;
  TORCH_CHECK(is_causal && ends && key_ends && query.scalar_type() == at::kBFloat16 &&
              query.stride(-1) == 1);
  const Tensor q = query.cpu(), k = key.cpu(), v = value.cpu();
  const Tensor out = at::zeros(q.sizes(), q.options());
  const std::vector<Rows> own = rows_of(*ends), seen = rows_of(*key_ends);
  for (size_t i = 0; i < own.size(); ++i) {
    TORCH_CHECK(own[i].length <= longest && seen[i].length <= longest_keys);
    const Document one = document(q, k, v, own[i], seen[i]);
    out.narrow(0, own[i].begin, own[i].length)
        .copy_(at::bmm(one.probability, one.value).transpose(0, 1));
  }
  const Tensor nothing = at::empty({0}, query.options());
  const Tensor log_sum = at::zeros({q.size(1), q.size(0)}, query.options().dtype(at::kFloat));
  return {out.to(query.device()), log_sum, nothing, nothing, nothing};
}

// Sums the gradients of the heads of a group, which share a key. [H, S, A] -> [S, G, A].
Tensor shared(const Tensor& gradient, int64_t groups) {
  return gradient.view({groups, -1, gradient.size(1), gradient.size(2)}).sum(1).transpose(0, 1);
}

std::tuple<Tensor, Tensor, Tensor> backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value,
    const Tensor& /*out*/, const Tensor& /*log_sum*/, const Tensor& ends, const Tensor& /*ends*/,
    int64_t /*longest*/, int64_t /*longest*/, double /*dropout*/, bool /*is_causal*/,
    const Tensor& /*state*/, const Tensor& /*unused*/, std::optional<double> /*scale*/,
    std::optional<int64_t> /*left*/, std::optional<int64_t> /*right*/) {
  const Detour detour;
  const Tensor q = query.cpu(), k = key.cpu(), v = value.cpu(), g = gradient.cpu();
  const Tensor dq = at::zeros(q.sizes(), q.options()), dk = at::zeros(k.sizes(), q.options());
  const Tensor dv = at::zeros(v.sizes(), q.options());
  for (const Rows& rows : rows_of(ends)) {
    const Document one = document(q, k, v, rows, rows);
    const Tensor upstream = heads_first(g, rows, q.size(1));
    const Tensor dp = at::bmm(upstream, one.value.transpose(1, 2));
    const Tensor ds =
        one.probability * (dp - (dp * one.probability).sum(-1, true)) * scale_of(query);
    const auto at_rows = [&](const Tensor& of) { return of.narrow(0, rows.begin, rows.length); };
    at_rows(dq).copy_(at::bmm(ds, one.key).transpose(0, 1));
    at_rows(dk).copy_(shared(at::bmm(ds.transpose(1, 2), one.query), k.size(1)));
    at_rows(dv).copy_(shared(at::bmm(one.probability.transpose(1, 2), upstream), k.size(1)));
  }
  return {dq.to(query.device()), dk.to(query.device()), dv.to(query.device())};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("_flash_attention_forward", &forward);
  library.impl("_flash_attention_backward", &backward);
}

}  // namespace emulated
