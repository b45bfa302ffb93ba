// Grouped products on a GPU against plain sums in f64: one product an expert with counts on the
// host, one launch with counts on the device. In a build without CUDA the GPU is emulated
// (tests/support/emulated_cuda).

#include <torch/csrc/autograd/autograd.h>

#include "kernels/ops/bf16_working_copy.h"
#include "kernels/ops/grouped_swiglu.h"
#include "kernels/ops/linear.h"
#include "tests/support/gpu.h"

using at::Tensor;
using namespace moe;
using test::kGpu;

namespace {

// Half a unit in the last place of 24 and of 8 bits: the bound of a relative rounding error.
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
std::vector<Tensor> computed(const Tensors& given, const Segments& segments) {
  const Tensor rows = given.rows.to(kGpu).requires_grad_(true);
  const Tensor weight = given.weight.to(kGpu).requires_grad_(true);
  const Tensor y = kernels::grouped_linear(rows, weight, segments);
  auto found = torch::autograd::grad({y}, {rows, weight}, {given.upstream.to(kGpu)});
  found.insert(found.begin(), y.detach());
  return found;
}

}  // namespace

TEST_CASE("grouped products equal plain sums, with counts on the host or on the device",
          "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(9);
  for (size_t number = 0; number < kCases.size(); ++number) {
    const Case& each = kCases[number];
    const Tensors given(each);
    const Truth truth = truth_of(each, given);
    const Tensor ends =
        at::cumsum(at::tensor(each.rows_per_expert, at::kLong), 0).to(at::kInt).to(kGpu);
    CAPTURE(number);
    const auto counted = computed(given, each.rows_per_expert);
    check(each, truth, counted);
    check(each, truth, computed(given, ends));
    const Tensor past = counted[0].narrow(0, used_rows(each), each.unused);
    CHECK((each.unused == 0 || past.cpu().count_nonzero().item<int64_t>() == 0));
  }
}

TEST_CASE("weight gradients of large experts are f32 sums, with counts on the device too",
          "[model][gpu]") {
  MOE_NEED_GPU();
  at::manual_seed(10);
  const std::vector<int64_t> rows_per_expert{5, 0, 9};
  const int64_t width = 1024, inner = 1024;
  const Tensor rows = at::randn({16, width}).to(at::kBFloat16).to(kGpu);
  const Tensor upstream = at::randn({16, width}).to(at::kBFloat16).to(kGpu);
  const Tensor ends = at::tensor({5, 5, 14}, at::kInt).to(kGpu);
  const auto weight = [](int64_t outer, int64_t depth) {
    Tensor made = (at::randn({3, outer, depth}) / 32).to(kGpu).requires_grad_(true);
    kernels::keep_bf16_working_copy(made);
    return made;
  };
  const Tensor gate_up = weight(2 * inner, width), down = weight(width, inner);
  REQUIRE(kernels::use_per_expert_gradients(gate_up));
  const auto gradients = [&](const auto& segments) {
    gate_up.mutable_grad() = down.mutable_grad() = Tensor();
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {  // the second is added to the first
      kernels::grouped_swiglu(rows, gate_up, down, segments).backward(upstream);
    }
    return std::vector<Tensor>{gate_up.grad().cpu() / 2, down.grad().cpu() / 2};
  };
  const auto by_device = gradients(ends), by_host = gradients(rows_per_expert);
  for (size_t i = 0; i < by_host.size(); ++i) {
    CAPTURE(i);
    const Tensor& found = by_device[i];
    CHECK(found[1].count_nonzero().item<int64_t>() == 0);
    CHECK(!at::equal(found, found.to(at::kBFloat16).to(at::kFloat)));
    // The operands of both were rounded to bf16 a few times.
    CHECK((found - by_host[i]).norm().item<double>() <=
          4 * kBf16 * by_host[i].norm().item<double>());
  }
}
