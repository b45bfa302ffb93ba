// The MoE layer: golden cases with every gradient, function preservation of equal experts, finite
// differences through routing, experts and combine, and the shared expert.

#include <torch/csrc/autograd/autograd.h>

#include "core/model/moe/layer.h"
#include "core/route/route.h"
#include "tests/support/catch.h"
#include "tests/support/gradcheck.h"
#include "tests/support/oracle.h"

namespace moe::test {
namespace {

using model::MoeWeights;
using nlohmann::json;

at::Tensor random(at::IntArrayRef shape, at::ScalarType type = at::kDouble) {
  return at::randn(shape, type);
}

MoeWeights random_weights(int64_t experts, int64_t width, int64_t inner,
                          at::ScalarType type = at::kDouble) {
  return {random({experts, width}, type), random({experts, 2 * inner, width}, type) * 0.5,
          random({experts, width, inner}, type) * 0.5};
}

// Computes the FFN of one expert.
at::Tensor dense(const at::Tensor& x, const MoeWeights& weights, int64_t expert) {
  const at::Tensor hidden = at::matmul(x, weights.gate_up[expert].t());
  const int64_t inner = hidden.size(1) / 2;
  return at::matmul(at::silu(hidden.narrow(1, 0, inner)) * hidden.narrow(1, inner, inner),
                    weights.down[expert].t());
}

MoeWeights case_weights(const json& input) {
  std::vector<at::Tensor> gate_up, down;
  for (const auto& expert : input.at("experts")) {
    gate_up.push_back(at::cat(
        {tensor_of(expert.at("gate"), at::kFloat), tensor_of(expert.at("up"), at::kFloat)}));
    down.push_back(tensor_of(expert.at("down"), at::kFloat));
  }
  return {tensor_of(input.at("router_weight"), at::kFloat).requires_grad_(true),
          at::stack(gate_up).requires_grad_(true), at::stack(down).requires_grad_(true)};
}

// Checks each auxiliary loss of a case. Returns their sum, weighted by their coefficients.
at::Tensor weighted_losses(const json& one, const route::AuxLosses& losses) {
  at::Tensor total = at::zeros({});
  for (const auto& [name, coefficient] : one["input"]["aux"].items()) {
    const at::Tensor loss = name == "entropy" ? losses.entropy
                            : name == "l1"    ? losses.l1
                                              : losses.load_balance;
    CHECK(loss.item<double>() == Approx(one["loss"][name].get<double>()).epsilon(1e-5));
    total = total + coefficient.get<double>() * loss;
  }
  return total;
}

void check_layer_case(const json& one) {
  const json& input = one.at("input");
  const auto settings = settings_of(input.at("router"), input["router"]["family"]);
  const MoeWeights weights = case_weights(input);
  const auto x = tensor_of(input.at("x"), at::kFloat).requires_grad_(true);
  const auto out =
      model::moe_forward(x, {weights.router, settings}, weights.experts(), group_of(input));
  CHECK(distance(out.y, tensor_of(one["expect"]["y"], at::kDouble)) < 1e-5);

  const auto dy = tensor_of(input.at("dy"), at::kFloat);
  ((out.y * dy).sum() + weighted_losses(one, out.losses)).backward();
  const double tolerance = 1e-4;  // sums of many f32 products
  const json& grad = one.at("grad");
  CHECK(distance(x.grad(), tensor_of(grad.at("x"), at::kDouble)) < tolerance);
  CHECK(distance(weights.router.grad(), tensor_of(grad.at("router_weight"), at::kDouble)) <
        tolerance);
  for (size_t expert = 0; expert < grad.at("experts").size(); ++expert) {
    const json& want = grad["experts"][expert];
    const auto index = static_cast<int64_t>(expert);
    const auto gate_up =
        at::cat({tensor_of(want.at("gate"), at::kDouble), tensor_of(want.at("up"), at::kDouble)});
    CHECK(distance(weights.gate_up.grad()[index], gate_up) < tolerance);
    CHECK(distance(weights.down.grad()[index], tensor_of(want.at("down"), at::kDouble)) <
          tolerance);
  }
}

// Bound of |MoE - dense| in f64: weights sum to one within 3 eps, sums of F D = 48 products within
// 48 eps, outputs of order 10: 51 * 2.2e-16 * 10 = 1.1e-13.
constexpr double kPreserved = 1e-12;

}  // namespace

TEST_CASE("outputs, losses and gradients equal the golden cases") {
  if (oracle_cases().empty()) {
    MOE_SKIP("no golden cases: put the oracle folder beside the shared data");
  }
  const auto cases = oracle_cases_of("layer");
  REQUIRE(cases.size() == 5);
  for (const auto& one : cases) {
    INFO(one.at("name"));
    check_layer_case(one);
  }
}

TEST_CASE("equal experts compute the dense FFN for any router weights") {
  at::manual_seed(41);
  for (const double router_scale : {0.0, 1.0, 30.0}) {
    MoeWeights weights = random_weights(8, 8, 6);
    weights.router = weights.router * router_scale;
    weights.gate_up = weights.gate_up.narrow(0, 0, 1).repeat({8, 1, 1});
    weights.down = weights.down.narrow(0, 0, 1).repeat({8, 1, 1});
    const auto x = random({40, 8});
    for (const char* text :
         {"top1+ir:cf=0.25", "top1+ir:cf=2", "top2+ir+fr:cf=0.5", "top2:cf=inf", "top1:cf=inf"}) {
      const auto settings = route::parse_router(text);
      REQUIRE(route::preserves_function(settings).exact);
      for (const int64_t ranks : {1, 2, 8}) {
        INFO(text << " W " << ranks << " router scale " << router_scale);
        const auto out = model::moe_forward(x, {weights.router, settings}, weights.experts(),
                                            route::partition_tokens(40, ranks));
        CHECK(distance(out.y, dense(x, weights, 0)) < kPreserved);
      }
    }
  }
}

TEST_CASE("the whole layer has the gradient of finite differences") {
  at::manual_seed(47);
  const MoeWeights weights = random_weights(4, 5, 3);
  const auto x = random({9, 5}), dy = random({9, 5});
  const auto group = route::partition_tokens(9, 2);
  for (const char* text :
       {"top2+ir+fr:cf=1,st=off", "top1:gate=none", "topp:0.6", "relu:k=1", "expert-choice:cf=1"}) {
    INFO(text);
    const auto settings = route::parse_router(text);
    const auto loss = [&](const at::Tensor& at, const MoeWeights& with) {
      const auto out = model::moe_forward(at, {with.router, settings}, with.experts(), group,
                                          {.gate_scale = 0.7});
      const auto aux = out.losses.l1.defined() ? out.losses.l1 : out.losses.load_balance;
      const at::Tensor sum = (out.y * dy).sum();
      return aux.defined() ? sum + 0.3 * aux : sum;
    };
    const auto check = [](const at::Tensor& at, const auto& f) {
      // Outputs and curvature are up to 100 times those that kGradTolerance was made for.
      CHECK(distance(autograd(f, at), finite_difference(f, at)) < 100 * kGradTolerance);
    };
    check(x, [&](const at::Tensor& at) { return loss(at, weights); });
    check(weights.router, [&](const at::Tensor& at) {
      return loss(x, {at, weights.gate_up, weights.down});
    });
    check(weights.down, [&](const at::Tensor& at) {
      return loss(x, {weights.router, weights.gate_up, at});
    });
  }
}

TEST_CASE("a shared expert is the gated FFN of transformers' Qwen2-MoE, with its gradients") {
  at::manual_seed(61);
  const MoeWeights one = random_weights(1, 5, 3);
  const model::SharedExpert shared{random({1, 5}), {one.gate_up, one.down}};
  const at::Tensor x = random({7, 5}), dy = random({7, 5});
  CHECK(distance(shared.run(x), at::matmul(x, shared.gate.t()).sigmoid() * dense(x, one, 0)) <
        1e-13);
  CHECK(shared.run(x.narrow(0, 0, 0)).sizes() == at::IntArrayRef({0, 5}));
  const auto check = [&](const at::Tensor& at, const auto& output) {
    const auto loss = [&](const at::Tensor& value) { return (output(value) * dy).sum(); };
    CHECK(distance(autograd(loss, at), finite_difference(loss, at)) < 100 * kGradTolerance);
  };
  using model::SharedExpert;
  check(x, [&](const at::Tensor& at) { return shared.run(at); });
  check(shared.gate, [&](const at::Tensor& at) {
    return SharedExpert{at, {one.gate_up, one.down}}.run(x);
  });
  check(one.gate_up, [&](const at::Tensor& at) {
    return SharedExpert{shared.gate, {at, one.down}}.run(x);
  });
  check(one.down, [&](const at::Tensor& at) {
    return SharedExpert{shared.gate, {one.gate_up, at}}.run(x);
  });
}

TEST_CASE("bf16 activations are routed and summed in f32") {
  at::manual_seed(49);
  const MoeWeights weights = random_weights(4, 16, 8, at::kFloat);
  const auto x = random({32, 16}, at::kFloat).to(at::kBFloat16);
  const auto settings = route::parse_router("top2+ir+fr:cf=1");
  const auto group = route::partition_tokens(32, 2);
  const auto out = model::moe_forward(x, {weights.router, settings}, weights.experts(), group);
  CHECK(out.y.scalar_type() == at::kFloat);
  const auto rounded = [](const at::Tensor& weight) {
    return weight.to(at::kBFloat16).to(at::kFloat);
  };
  const MoeWeights wide = {weights.router, rounded(weights.gate_up), rounded(weights.down)};
  const auto exact =
      model::moe_forward(x.to(at::kFloat), {wide.router, settings}, wide.experts(), group);
  // The routing is equal. Hidden products and results are rounded to 8 bits: a few times 2^-8.
  CHECK(at::equal(out.counters.tokens_per_expert, exact.counters.tokens_per_expert));
  CHECK((out.y - exact.y).abs().max().item<double>() < 0.03 * exact.y.abs().max().item<double>());
}

}  // namespace moe::test
