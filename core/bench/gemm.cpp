#include "core/bench/gemm.h"

#include <ATen/ATen.h>

#include <array>

#include "kernels/cpu/gemm.h"

namespace moe::bench {

namespace {

constexpr std::array kForms = {"y", "dx", "dw"};

double operations(const ProductShape& shape) {
  return 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.k) *
         static_cast<double>(shape.n);
}

}  // namespace

std::vector<ProductShape> product_shapes(const model::ModelConfig& config, int64_t tokens,
                                         int64_t rows) {
  const int64_t width = config.hidden_size, inner = config.intermediate_size;
  const int64_t heads = config.heads * config.head_dim;
  const int64_t qkv = heads + 2 * config.kv_heads * config.head_dim;
  const int64_t mixtures = config.moe ? static_cast<int64_t>(config.moe->layers.size()) : 0;
  const int64_t dense = config.layers - mixtures;
  std::vector<ProductShape> shapes;
  const auto add = [&](const char* name, int64_t m, int64_t k, int64_t n, int64_t times) {
    ProductShape shape{name, m, k, n, 0};
    shape.flop = 3 * operations(shape) * static_cast<double>(times);
    shapes.push_back(shape);
  };
  if (mixtures > 0) {
    const model::MoeConfig& moe = *config.moe;
    const int64_t experts = moe.experts, each = std::max<int64_t>(1, rows / experts);
    add("expert up", each, width, 2 * moe.expert_width, mixtures * experts);
    add("expert down", each, moe.expert_width, width, mixtures * experts);
    if (moe.shared_expert_width > 0) {
      add("shared up", tokens, width, 2 * moe.shared_expert_width, mixtures);
      add("shared down", tokens, moe.shared_expert_width, width, mixtures);
    }
  }
  if (dense > 0) {
    add("dense up", tokens, width, 2 * inner, dense);
    add("dense down", tokens, inner, width, dense);
  }
  add("qkv", tokens, width, qkv, config.layers);
  add("attention out", tokens, heads, width, config.layers);
  const int64_t block = std::max<int64_t>(1, std::min<int64_t>(tokens, 512));
  add("head", block, width, config.vocab_size, 1);
  shapes.back().flop *= static_cast<double>(tokens) / static_cast<double>(block);
  return shapes;
}

double attention_flop(const model::ModelConfig& config, int64_t tokens, int64_t length) {
  return 3.0 * 2.0 * static_cast<double>(config.layers * config.heads * config.head_dim) *
         static_cast<double>(tokens) * static_cast<double>(length);
}

ProductReport bench_product(const ProductShape& shape, int64_t repeats,
                            const at::TensorOptions& options) {
  at::manual_seed(1);
  const auto random = [&](at::IntArrayRef sizes) { return at::randn(sizes).to(options); };
  const at::Tensor x = random({shape.m, shape.k}), w = random({shape.n, shape.k});
  const at::Tensor dy = random({shape.m, shape.n});
  const auto time = [&](const std::function<void()>& work) {
    return time_of(repeats, work, options.device());
  };
  at::Tensor y = at::empty_like(dy), dx = at::empty_like(x), dw = at::empty_like(w);
  ProductReport report{shape, {}, {}};
  report.library[0] = time([&] { at::mm_out(y, x, w.t()); });
  report.library[1] = time([&] { at::mm_out(dx, dy, w); });
  report.library[2] = time([&] { at::mm_out(dw, dy.t(), x); });
  report.ours[0] = time([&] { kernels::product_out(y, x, w.t()); });
  report.ours[1] = time([&] { kernels::product_out(dx, dy, w); });
  report.ours[2] = time([&] { kernels::product_out(dw, dy.t(), x); });
  return report;
}

double roof_flops(const std::vector<ProductReport>& reports) {
  double flop = 0, seconds = 0;
  for (const auto& report : reports) {
    for (const Timing& time : report.library) {
      flop += report.shape.flop / 3;
      seconds += report.shape.flop / 3 / operations(report.shape) * time.best_s;
    }
  }
  return flop / seconds;
}

OrderedJson to_json(const ProductReport& report) {
  const ProductShape& shape = report.shape;
  OrderedJson json = {
      {"name", shape.name}, {"m", shape.m}, {"k", shape.k}, {"n", shape.n}, {"flop", shape.flop}};
  for (size_t form = 0; form < kForms.size(); ++form) {
    const auto rate = [&](const Timing& time) { return operations(shape) / time.best_s / 1e9; };
    json[kForms[form]] = {{"library_gflops", rate(report.library[form])},
                          {"gflops", rate(report.ours[form])},
                          {"library", to_json(report.library[form])},
                          {"ours", to_json(report.ours[form])}};
  }
  return json;
}

}  // namespace moe::bench
