// The MoE layer: golden cases with every gradient, function preservation of equal experts, awkward
// shapes, and finite differences through routing, experts and combine.

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
  const auto out = model::moe_forward(x, weights, settings, group_of(input));
  CHECK(distance(out.y, tensor_of(one["expect"]["y"], at::kDouble)) < 1e-5);

  const auto dy = tensor_of(input.at("dy"), at::kFloat);
  ((out.y * dy).sum() + weighted_losses(one, out.losses)).backward();
  const double tolerance = 1e-4;  // of layers: sums of many f32 products
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

TEST_CASE("outputs, losses and gradients equal the golden cases", "[model]") {
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

TEST_CASE("equal experts compute the dense FFN for any router weights", "[model]") {
  at::manual_seed(41);
  for (const double router_scale : {0.0, 0.02, 1.0, 30.0}) {
    MoeWeights weights = random_weights(8, 8, 6);
    weights.router = weights.router * router_scale;
    weights.gate_up = weights.gate_up.narrow(0, 0, 1).repeat({8, 1, 1});
    weights.down = weights.down.narrow(0, 0, 1).repeat({8, 1, 1});
    const auto x = random({40, 8});
    for (const char* text : {"top1+ir:cf=0.25", "top1+ir:cf=0.5", "top1+ir:cf=1", "top1+ir:cf=2",
                             "top2+ir+fr", "top2+ir+fr:cf=0.5", "top2:cf=inf", "top1:cf=inf"}) {
      const auto settings = route::parse_router(text);
      REQUIRE(route::preserves_function(settings).exact);
      for (const int64_t ranks : {1, 2, 8}) {
        INFO(text << " W " << ranks << " router scale " << router_scale);
        const auto out =
            model::moe_forward(x, weights, settings, route::spread_over_ranks(40, ranks));
        CHECK(distance(out.y, dense(x, weights, 0)) < kPreserved);
      }
    }
  }
}

TEST_CASE("a token that no expert accepts has a zero output", "[model]") {
  at::manual_seed(42);
  const auto settings = route::parse_router("top1:cf=0.5");
  const MoeWeights weights = random_weights(4, 8, 6);
  const auto out = model::moe_forward(random({1, 8}).repeat({8, 1}), weights, settings,
                                      route::spread_over_ranks(8, 1));
  CHECK(out.y[0].abs().max().item<double>() > 0);  // one slot, the first of equals has it
  CHECK(out.y.narrow(0, 1, 7).abs().max().item<double>() == 0);
}

TEST_CASE("gate_scale multiplies the output", "[model]") {
  at::manual_seed(43);
  const MoeWeights weights = random_weights(4, 8, 6);
  const auto x = random({12, 8});
  const auto settings = route::parse_router("topp:0.5");
  const auto group = route::spread_over_ranks(12, 2);
  const auto once = model::moe_forward(x, weights, settings, group).y;
  const auto twice = model::moe_forward(x, weights, settings, group, {.gate_scale = 2.0}).y;
  CHECK(distance(twice, once * 2) < 1e-14);
}

TEST_CASE("awkward shapes pass forward and backward", "[model]") {
  at::manual_seed(44);
  struct Shape {
    int64_t tokens, experts, ranks;
  };
  for (const auto& shape :
       std::vector<Shape>{{0, 4, 2}, {1, 4, 2}, {3, 8, 4}, {16, 1, 1}, {16, 8, 8}}) {
    for (const char* text : {"top1", "top1+ir+fr", "top1:cf=inf", "topp:0.4", "relu:k=1"}) {
      INFO(text << " T " << shape.tokens << " E " << shape.experts);
      MoeWeights weights = random_weights(shape.experts, 8, 6, at::kFloat);
      const auto x = random({shape.tokens, 8}, at::kFloat).requires_grad_(true);
      weights.router.requires_grad_(true);
      weights.gate_up.requires_grad_(true);
      weights.down.requires_grad_(true);
      const auto out = model::moe_forward(x, weights, route::parse_router(text),
                                          route::spread_over_ranks(shape.tokens, shape.ranks));
      CHECK(out.y.sizes() == at::IntArrayRef({shape.tokens, 8}));
      const auto aux = out.losses.l1.defined() ? out.losses.l1 : out.losses.load_balance;
      (out.y.sum() + aux).backward();
      CHECK(at::isfinite(x.grad()).all().item<bool>());
      CHECK(at::isfinite(weights.router.grad()).all().item<bool>());
    }
  }
}

TEST_CASE("all rows on one expert leave the others without gradient", "[model]") {
  at::manual_seed(45);
  MoeWeights weights = random_weights(4, 8, 6);
  weights.router = at::zeros({4, 8}, at::kDouble);
  weights.router[2] = 5.0;
  weights.gate_up.requires_grad_(true);
  const auto x = random({10, 8}).abs();  // every logit of e2 is positive
  const auto out = model::moe_forward(x, weights, route::parse_router("top1:cf=inf"),
                                      route::spread_over_ranks(10, 2));
  CHECK(distance(out.y, dense(x, weights, 2)) < kPreserved);
  out.y.square().sum().backward();
  for (int64_t expert = 0; expert < 4; ++expert) {
    CHECK((weights.gate_up.grad()[expert].abs().max().item<double>() > 0) == (expert == 2));
  }
}

TEST_CASE("padding tokens change no other output and have zero outputs", "[model]") {
  at::manual_seed(46);
  const MoeWeights weights = random_weights(4, 8, 6);
  const auto x = random({12, 8});
  const auto settings = route::parse_router("top2+ir+fr:cf=1");
  auto group = route::spread_over_ranks(8, 2);
  const auto alone = model::moe_forward(x.narrow(0, 0, 8), weights, settings, group);
  group.home.resize(12, -1);
  const auto padded = model::moe_forward(x, weights, settings, group);
  CHECK(distance(padded.y.narrow(0, 0, 8), alone.y) < 1e-13);
  CHECK(padded.y.narrow(0, 8, 4).abs().max().item<double>() == 0);
  CHECK(distance(padded.losses.load_balance, alone.losses.load_balance) < 1e-13);
}

TEST_CASE("the whole layer has the gradient of finite differences", "[model]") {
  at::manual_seed(47);
  const MoeWeights weights = random_weights(4, 5, 3);
  const auto x = random({9, 5}), dy = random({9, 5});
  const auto group = route::spread_over_ranks(9, 2);
  for (const char* text : {"top2+ir+fr:cf=1,st=off", "top1:gate=none", "topp:0.6", "relu:k=1"}) {
    INFO(text);
    const auto settings = route::parse_router(text);
    const auto loss = [&](const at::Tensor& at, const MoeWeights& with) {
      const auto out = model::moe_forward(at, with, settings, group, {.gate_scale = 0.7});
      const auto aux = out.losses.l1.defined() ? out.losses.l1 : out.losses.load_balance;
      return (out.y * dy).sum() + 0.3 * aux;
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

TEST_CASE("bf16 activations are routed and summed in f32", "[model]") {
  at::manual_seed(49);
  const MoeWeights weights = random_weights(4, 16, 8, at::kFloat);
  const auto x = random({32, 16}, at::kFloat).to(at::kBFloat16);
  const auto settings = route::parse_router("top2+ir+fr:cf=1");
  const auto group = route::spread_over_ranks(32, 2);
  const auto out = model::moe_forward(x, weights, settings, group);
  CHECK(out.y.scalar_type() == at::kFloat);
  const auto rounded = [](const at::Tensor& weight) {
    return weight.to(at::kBFloat16).to(at::kFloat);
  };
  const MoeWeights wide = {weights.router, rounded(weights.gate_up), rounded(weights.down)};
  const auto exact = model::moe_forward(x.to(at::kFloat), wide, settings, group);
  // The routing is equal. Hidden products and results are rounded to 8 bits: a few times 2^-8.
  CHECK(at::equal(out.counters.tokens_per_expert, exact.counters.tokens_per_expert));
  CHECK((out.y - exact.y).abs().max().item<double>() < 0.03 * exact.y.abs().max().item<double>());
}

}  // namespace moe::test
