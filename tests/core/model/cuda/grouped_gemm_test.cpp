// The two ways of the experts' products on a GPU, one product an expert and all in one launch:
// each against plain sums in f64, with counts on the host and on the device. In a build without
// CUDA the GPU is an emulated one (tests/support/emulated_cuda).

#include "kernels/ops/grouped_gemm.h"

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/token_dispatcher.h"
#include "kernels/ops/grouped_linear.h"
#include "kernels/ops/grouped_swiglu.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe;
using kernels::GroupedGemm;
using test::kGpu;

namespace {

// Half a unit in the last place of 24 and of 8 bits, at most so much of a number.
constexpr double kF32 = 1.0 / (1 << 24), kBf16 = 1.0 / (1 << 8);

struct Case {
  std::vector<int64_t> rows_per_expert;
  int64_t unused;  // rows past those of the experts
  int64_t inner, outer;
  at::ScalarType type;
};

const std::vector<Case> kCases = {
    {{1}, 0, 8, 8, at::kFloat},
    {{31, 0, 33, 1}, 0, 16, 24, at::kFloat},
    {{0, 0, 33, 0}, 5, 12, 8, at::kFloat},
    {{31, 0, 33, 1}, 7, 16, 24, at::kBFloat16},
    {{0, 9, 0}, 0, 8, 3, at::kBFloat16},  // rows of 3 numbers are not whole 16 bytes
};

int64_t used_rows(const Case& each) {
  return std::accumulate(each.rows_per_expert.begin(), each.rows_per_expert.end(), int64_t{0});
}

// On the host: rows [R, D] and upstream [R, N] in the case's type, weight [E, N, D] f32.
struct Tensors {
  explicit Tensors(const Case& each)
      : rows(at::randn({used_rows(each) + each.unused, each.inner}).to(each.type)),
        upstream(at::randn({rows.size(0), each.outer}).to(each.type)),
        weight(at::randn(
            {static_cast<int64_t>(each.rows_per_expert.size()), each.outer, each.inner})) {}
  Tensor rows, upstream, weight;
};

// A sum of products, and the sum of their absolute values, by which rounding errors are bounded.
struct Sums {
  Tensor value, size;

  // Of `terms` terms, summed in f32 and rounded once to `type`.
  bool hold(const Tensor& found, int64_t terms, at::ScalarType type) const {
    const double rounding = type == at::kBFloat16 ? kBf16 : kF32;
    const Tensor bound = size * (static_cast<double>(terms + 1) * kF32) + value.abs() * rounding;
    return ((found.cpu().to(at::kDouble) - value).abs() <= bound * 1.01).all().item<bool>();
  }
};

Sums sums_of(const Tensor& left, const Tensor& right) {  // [M, K], [K, N] f64
  return {left.mm(right), left.abs().mm(right.abs())};
}

// y [R, N], d rows [R, D], d weight [E, N, D], by plain products in f64 of what the products read.
struct Truth {
  std::vector<Sums> y, rows, weight;  // one an expert
};

Truth truth_of(const Case& each, const Tensors& given) {
  const Tensor rows = given.rows.to(at::kDouble), upstream = given.upstream.to(at::kDouble);
  const Tensor weight = given.weight.to(each.type).to(at::kDouble);
  Truth truth;
  int64_t first = 0;
  for (size_t expert = 0; expert < each.rows_per_expert.size(); ++expert) {
    const int64_t count = each.rows_per_expert[expert];
    const Tensor x = rows.narrow(0, first, count), g = upstream.narrow(0, first, count);
    const Tensor w = weight[static_cast<int64_t>(expert)];
    truth.y.push_back(sums_of(x, w.t()));
    truth.rows.push_back(sums_of(g, w));
    truth.weight.push_back(sums_of(g.t(), x));
    first += count;
  }
  return truth;
}

void check(const Case& each, const Truth& truth, const std::vector<Tensor>& found) {
  int64_t first = 0;
  for (size_t expert = 0; expert < each.rows_per_expert.size(); ++expert) {
    const int64_t count = each.rows_per_expert[expert];
    CHECK(truth.y[expert].hold(found[0].narrow(0, first, count), each.inner, each.type));
    CHECK(truth.rows[expert].hold(found[1].narrow(0, first, count), each.outer, each.type));
    // By the grouped GEMM the sum is rounded to the operands' type before it is widened.
    CHECK(truth.weight[expert].hold(found[2][static_cast<int64_t>(expert)], count, each.type));
    first += count;
  }
}

// y and the gradients of rows and weight; `segments`: counts, or ends on the device.
template <typename Segments>
std::vector<Tensor> computed(const Tensors& given, const Segments& segments, GroupedGemm gemm) {
  const Tensor rows = given.rows.to(kGpu).requires_grad_(true);
  const Tensor weight = given.weight.to(kGpu).requires_grad_(true);
  const Tensor y = kernels::grouped_linear(rows, weight, segments, gemm);
  auto found = torch::autograd::grad({y}, {rows, weight}, {given.upstream.to(kGpu)});
  found.insert(found.begin(), y.detach());
  return found;
}

}  // namespace

TEST_CASE("experts' products one by one and in one launch are the plain sums", "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  for (size_t number = 0; number < kCases.size(); ++number) {
    const Case& each = kCases[number];
    const Tensors given(each);
    const Truth truth = truth_of(each, given);
    const Tensor ends = kernels::ends_of(each.rows_per_expert, kGpu);
    for (const auto gemm : {GroupedGemm::kAuto, GroupedGemm::kLoop, GroupedGemm::kGrouped}) {
      CAPTURE(number, static_cast<int>(gemm));
      const auto counted = computed(given, each.rows_per_expert, gemm);
      check(each, truth, counted);
      check(each, truth, computed(given, ends, gemm));
      const Tensor past = counted[0].narrow(0, used_rows(each), each.unused);
      CHECK((each.unused == 0 || past.cpu().count_nonzero().item<int64_t>() == 0));
    }
  }
}

TEST_CASE("a layer's experts give the same by either way", "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const auto made = [](at::IntArrayRef shape) { return (at::randn(shape) / 2).to(kGpu); };
  const Tensor x = made({33, 16}).to(at::kBFloat16), logits = made({33, 4}) * 4;
  const Tensor gate_up = made({4, 16, 16}), down = made({4, 16, 8});
  for (const auto* router : {"top1+ir+fr", "top2:cf=inf", "topp:0.6"}) {
    const auto y_by = [&](GroupedGemm gemm) {
      const auto routing =
          route::route(logits, route::parse_router(router), route::spread_over_ranks(x.size(0), 2));
      const model::Experts experts(gate_up, down, {}, {}, gemm);
      return model::local_dispatcher()->run(x, routing, experts, 1.0).cpu().to(at::kDouble);
    };
    const Tensor loop = y_by(GroupedGemm::kLoop), grouped = y_by(GroupedGemm::kGrouped);
    CAPTURE(router);
    // Hidden products, the activation and the output are rounded to bf16, by up to 2^-9, and a sum
    // of f32 in another order may round to the next number: 2^-8 each time.
    CHECK((loop - grouped).norm().item<double>() <= 3.0 / (1 << 8) * loop.norm().item<double>());
    CHECK(loop.norm().item<double>() > 0);
  }
}
