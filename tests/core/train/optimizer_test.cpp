#include "core/train/step/optimizer.h"

#include <algorithm>
#include <cmath>

#include "core/base/random.h"
#include "tests/support/loaded_mixture.h"
#include "tests/support/threads.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
using at::Tensor;

namespace {

// Reference AdamW on doubles.
struct PlainAdamW {
  std::vector<double> weight, mean, square;
  double decay = 0;
  int64_t updates = 0;

  void step(const std::vector<double>& gradient, double lr, const AdamWSettings& settings) {
    ++updates;
    const double correction1 = 1 - std::pow(settings.beta1, static_cast<double>(updates));
    const double correction2 = 1 - std::pow(settings.beta2, static_cast<double>(updates));
    for (size_t i = 0; i < weight.size(); ++i) {
      weight[i] -= lr * decay * weight[i];
      mean[i] = settings.beta1 * mean[i] + (1 - settings.beta1) * gradient[i];
      square[i] = settings.beta2 * square[i] + (1 - settings.beta2) * gradient[i] * gradient[i];
      weight[i] -= lr / correction1 * mean[i] /
                   (std::sqrt(square[i]) / std::sqrt(correction2) + settings.eps);
    }
  }
};

std::vector<double> gather_values(const Tensor& tensor) {
  const Tensor flat = tensor.detach().to(at::kDouble).reshape({-1}).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

std::vector<model::NamedParameter> some_parameters() {
  at::manual_seed(3);
  return {{"matrix", at::randn({7, 5}).requires_grad_(true)},
          {"experts", at::randn({3, 4, 2}).requires_grad_(true)},
          {"norm", at::randn({11}).requires_grad_(true)}};
}

constexpr double kZ = 6;

// A window after `steps` ordinary steps: losses around 2 and norms around 1, normally spread.
struct Run {
  Random random{3};
  OutlierWindow window;

  explicit Run(int64_t steps = kOutlierWindow) {
    for (int64_t step = 0; step < steps; ++step) {
      CHECK_FALSE(find_outlier(window, loss(), norm(), kZ));
    }
  }
  double loss() { return 2 + 0.1 * random.normal(); }
  double norm() { return 1 + 0.2 * random.normal(); }
};

// Reference: mean + kZ standard deviations.
double upper_bound(const std::vector<double>& values) {
  double mean = 0, variance = 0;
  for (const double value : values) {
    mean += value / static_cast<double>(values.size());
  }
  for (const double value : values) {
    variance += (value - mean) * (value - mean) / (static_cast<double>(values.size()) - 1);
  }
  return mean + kZ * std::sqrt(variance);
}

// True if the step is an outlier and its description has `part`.
bool has_reason(const std::optional<std::string>& why, const std::string& part) {
  INFO(why.value_or("no outlier"));
  return why && why->find(part) != std::string::npos;
}

const Mixture kTop1 = {.router = "top1", .experts = 4};

std::vector<std::string> trained_names(const model::Llama& model,
                                       const std::vector<std::string>& words) {
  std::vector<std::string> names;
  for (const auto& parameter : train::trainable(model, words)) {
    names.push_back(parameter.name);
  }
  return names;
}

using Names = std::vector<std::string>;

AdamWSettings with_bf16_moments() {
  AdamWSettings settings;
  settings.moments = io::DType::kBF16;
  return settings;
}

Tensor state_tensor(const AdamW& optimizer, const std::string& name) {
  for (const auto& [known, tensor, shape, begin] : optimizer.state()) {
    if (known == name) {
      return tensor;
    }
  }
  FAIL("no " + name);
  return {};
}

// A parameter of `count` ones and its optimizer.
struct OneParameter {
  std::vector<model::NamedParameter> parameters;
  AdamW optimizer;

  OneParameter(int64_t count, const AdamWSettings& settings, uint64_t seed = 0)
      : parameters{{"w", at::ones({count, 1}).requires_grad_(true)}},
        optimizer(held_slices(parameters), settings, seed) {}
  void step(const Tensor& gradient) {
    parameters[0].tensor.mutable_grad() = gradient;
    optimizer.step(1e-3);
  }
  Tensor square() const { return state_tensor(optimizer, "exp_avg_sq.w"); }
  Tensor mean() const { return state_tensor(optimizer, "exp_avg.w"); }
};

}  // namespace

TEST_CASE("AdamW equals a reference in double over twenty steps") {
  const AdamWSettings settings{0.1, 0.9, 0.95, 1e-8};
  const auto parameters = some_parameters();
  std::vector<PlainAdamW> plain;
  for (const auto& parameter : parameters) {
    const std::vector<double> zeros(static_cast<size_t>(parameter.tensor.numel()));
    const double decay = parameter.name == "norm" ? 0.0 : settings.weight_decay;
    plain.push_back({gather_values(parameter.tensor), zeros, zeros, decay, 0});
  }
  AdamW optimizer(held_slices(parameters), settings);
  for (int step = 0; step < 20; ++step) {
    const double lr = 1e-2 / (1 + step);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const Tensor gradient = at::randn_like(parameters[i].tensor.detach());
      parameters[i].tensor.mutable_grad() = gradient;
      plain[i].step(gather_values(gradient), lr, settings);
    }
    optimizer.step(lr);
  }
  // Weights are of order 3, half an ulp is 1.2e-7, and each of 20 steps rounds a weight at most
  // three times. The updates, 3.6e-2 in total, add relative errors of about 10 eps: 4e-8.
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Tensor found = parameters[i].tensor.detach().to(at::kDouble).view({-1});
    CHECK(at::allclose(found, at::tensor(plain[i].weight), 0, 20 * 3 * 1.2e-7 + 4e-8));
  }
}

TEST_CASE("matrices decay, norms and biases do not, embedding and head by decay_embeddings") {
  const double lr = 1e-2, decay = 0.5;
  for (const bool decay_embeddings : {true, false}) {
    for (const auto& [name, shape, decays] :
         std::vector<std::tuple<std::string, std::vector<int64_t>, bool>>{
             {"model.embed_tokens", {6, 4}, decay_embeddings},
             {"lm_head", {6, 4}, decay_embeddings},
             {"model.layers.0.self_attn.qkv", {8, 4}, true},
             {"model.layers.0.mlp.router", {2, 4}, true},
             {"model.layers.0.mlp.gate_up", {2, 6, 4}, true},
             {"model.layers.0.self_attn.qkv_bias", {8}, false},
             {"model.layers.0.input_norm", {4}, false}}) {
      CAPTURE(decay_embeddings, name);
      const Tensor weight = at::randn(shape).requires_grad_(true);
      const Tensor before = weight.detach().clone();
      AdamWSettings settings;
      settings.weight_decay = decay;
      settings.decay_embeddings = decay_embeddings;
      AdamW optimizer(held_slices({{name, weight}}), settings);
      // w -= lr * decay * w, then the first step of a constant gradient: lr * g / (|g| + eps).
      weight.mutable_grad() = at::full(shape, 0.25);
      optimizer.step(lr);
      const double kept = decays ? 1 - lr * decay : 1;
      CHECK(at::allclose(weight.detach(), before * kept - lr, 1e-6, 1e-6));
    }
  }
}

TEST_CASE("a parameter without gradient keeps its value, moments and count") {
  const auto parameters = some_parameters();
  AdamW optimizer(held_slices(parameters), {0.1, 0.9, 0.999, 1e-8});
  const Tensor before = parameters[0].tensor.detach().clone();
  parameters[1].tensor.mutable_grad() = at::ones({3, 4, 2});
  optimizer.step(1e-2);
  CHECK(at::equal(parameters[0].tensor.detach(), before));
  // Its first update is still a first update: lr * g / (|g| + eps), after the decay.
  parameters[0].tensor.mutable_grad() = at::full({7, 5}, 0.25);
  optimizer.step(1e-2);
  CHECK(at::allclose(parameters[0].tensor.detach(), before * (1 - 1e-3) - 1e-2, 1e-6, 1e-6));
  optimizer.clear_gradients();
  CHECK_FALSE(parameters[0].tensor.grad().defined());
}

TEST_CASE("the gradient norm is that of all gradients, also of several pieces") {
  std::vector<model::NamedParameter> parameters = some_parameters();
  CHECK(gradient_norm(held_slices(parameters)) == 0.0);
  parameters[0].tensor.mutable_grad() = at::full({7, 5}, 2.0);
  parameters[2].tensor.mutable_grad() = at::full({11}, -1.0);
  CHECK(gradient_norm(held_slices(parameters)) == Approx(std::sqrt(35 * 4 + 11)));
  const int64_t many = (int64_t{1} << 20) * 2 + 17;
  const std::vector<model::NamedParameter> large{{"large", at::zeros({many}).requires_grad_(true)}};
  large[0].tensor.mutable_grad() = at::full({many}, 0.1);
  // 1024 squares in at least 8 lanes: 128 roundings of 6e-8 in the sum of a lane, half in its root.
  CHECK(gradient_norm(held_slices(large)) ==
        Approx(0.1 * std::sqrt(static_cast<double>(many))).epsilon(4e-6));
}

TEST_CASE("the gradient norm has equal bits with any number of threads") {
  // Large enough for LibTorch to sum the pieces on several threads.
  Tensor weight = at::zeros({40 << 20}).requires_grad_(true);
  weight.mutable_grad() = at::sin(at::arange(40 << 20, at::kFloat));
  const std::vector<model::NamedParameter> parameters = {{"large", weight}};
  by_any_threads([&] {
    return std::vector<Tensor>{
        at::scalar_tensor(gradient_norm(held_slices(parameters)), at::kDouble)};
  });
}

TEST_CASE("clipping scales as clip_grad_norm_ and never up") {
  CHECK(clip_scale(4, 1) == 1 / (4 + 1e-6));
  CHECK(clip_scale(0.5, 1) == 1);
  CHECK(clip_scale(4, 0) == 1);
}

TEST_CASE("bf16 moments are those in f32, rounded without bias, also over several pieces") {
  constexpr int64_t kCount = (int64_t{1} << 18) + 1000;  // a whole piece and a part of one
  at::manual_seed(5);
  const Tensor gradient = at::randn({kCount, 1});
  OneParameter narrow(kCount, with_bf16_moments()), wide(kCount, {});
  narrow.step(gradient);
  wide.step(gradient);
  // Both start at zero, so that the first updates differ only at the end of a piece, where the
  // kernel uses no vectors: at most 2 roundings of 6e-8 of a weight near 1.
  CHECK(at::allclose(narrow.parameters[0].tensor, wide.parameters[0].tensor, 0, 2 * 6e-8));
  for (const auto& [kept, exact] :
       {std::pair(narrow.mean(), wide.mean()), std::pair(narrow.square(), wide.square())}) {
    CHECK(kept.scalar_type() == at::kBFloat16);
    const Tensor error = kept.to(at::kFloat) - exact;
    CHECK((error.abs() <= exact.abs() / 128).all().item<bool>());
    // Errors of mean 0 and at most |x| / 128: the bound is five standard deviations of their sum.
    CHECK(std::abs(error.sum().item<double>()) <
          5 * (exact.to(at::kDouble) / 128).square().sum().sqrt().item<double>());
  }
  OneParameter other(kCount, with_bf16_moments(), /*seed=*/1);
  other.step(gradient);
  CHECK_FALSE(at::equal(other.mean(), narrow.mean()));
}

TEST_CASE("a step is an outlier if its loss or gradient norm is above the bound of the window") {
  const Run run;
  const double loss = upper_bound(run.window.losses), norm = upper_bound(run.window.norms);
  const auto judged = [&](double loss_value, double norm_value) {
    OutlierWindow window = run.window;
    return find_outlier(window, loss_value, norm_value, kZ);
  };
  CHECK_FALSE(judged(loss - 1e-9, norm - 1e-9));
  CHECK(has_reason(judged(loss + 1e-9, 1), "the loss 2."));
  CHECK(has_reason(judged(2, norm + 1e-9), "the gradient norm 2."));
  CHECK(has_reason(judged(2, norm + 1e-9), "6 standard deviations"));
  CHECK(has_reason(judged(9, 9), "128 steps"));
  CHECK_FALSE(judged(-100, 0));
}

TEST_CASE("there are no outliers before 64 steps, or within the rounding of equal values") {
  Run young(kOutlierStart - 1);
  CHECK_FALSE(find_outlier(young.window, 1e6, 1e6, kZ));
  OutlierWindow level;
  for (int step = 0; step < 200; ++step) {
    CHECK_FALSE(find_outlier(level, 2 + 1e-7 * (step % 3), 1, kZ));
  }
  CHECK(find_outlier(level, 2.1, 1, kZ));
}

TEST_CASE("the window has the last 128 steps, with outliers clipped to the bound") {
  Run run(300);
  CHECK(run.window.losses.size() == 128);
  CHECK(run.window.norms.size() == 128);
  const double bound = upper_bound(run.window.losses);
  REQUIRE(find_outlier(run.window, 1e6, 1.1, kZ));
  CHECK(run.window.losses.back() == Approx(bound).epsilon(1e-12));
  CHECK(run.window.norms.back() == 1.1);
  CHECK(run.window.in_a_row == 1);
  // The next, smaller outlier is found. Unclipped, the first would have raised the bound to 5e5.
  CHECK(has_reason(find_outlier(run.window, 4, 1, kZ), "the loss 4"));
  CHECK_FALSE(find_outlier(run.window, 2, 1, kZ));
  CHECK(run.window.in_a_row == 0);
}

TEST_CASE("16 outliers in a row are accepted as a new level") {
  Run run;
  for (int64_t step = 1; step < kMaxConsecutiveOutliers; ++step) {
    const auto why = find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ);
    REQUIRE(why);
    CHECK(why->find("in a row") == std::string::npos);
  }
  CHECK(has_reason(find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ), "16th in a row"));
  for (int step = 0; step < 300; ++step) {
    CHECK_FALSE(find_outlier(run.window, 1e5 + run.loss(), run.norm(), kZ));
  }
  CHECK(has_reason(find_outlier(run.window, 1e5 + 4, 1, kZ), "the loss"));
}

TEST_CASE("groups and patterns name the parameters that train") {
  const TempDir dir;
  const auto model = load_tiny_mixture(dir, kTop1);
  CHECK(trained_names(model, {}).size() == model.parameters().size());
  CHECK(trained_names(model, {"router"}) ==
        Names{"model.layers.0.mlp.router", "model.layers.2.mlp.router"});
  CHECK(trained_names(model, {"experts"}) ==
        Names{"model.layers.0.mlp.gate_up", "model.layers.0.mlp.down", "model.layers.2.mlp.gate_up",
              "model.layers.2.mlp.down"});
  CHECK(trained_names(model, {"dense"})[0] == "model.layers.1.mlp.gate_up");
  CHECK(trained_names(model, {"model.layers.1.self*"}) ==
        Names{"model.layers.1.self_attn.qkv", "model.layers.1.self_attn.o_proj"});
  CHECK(trained_names(model, {"*.1.*norm"}) ==
        Names{"model.layers.1.input_layernorm", "model.layers.1.post_attention_layernorm"});
  // Every parameter is in exactly one group.
  size_t sum = 0;
  for (const char* group : {"experts", "router", "attention", "dense", "norms", "embeddings"}) {
    sum += trained_names(model, {group}).size();
  }
  CHECK(sum == model.parameters().size());
}

TEST_CASE("a shared expert is in the group dense, and its gate has no bf16 copy") {
  const TempDir dir;
  const auto model =
      load_tiny_mixture(dir, {.router = "top1", .experts = 4, .shared_expert = true});
  CHECK(trained_names(model, {"experts"}).size() == 4);
  const Names dense = trained_names(model, {"dense"});
  CHECK(dense[0] == "model.layers.0.mlp.shared_expert.gate_up");
  CHECK(dense[1] == "model.layers.0.mlp.shared_expert.down");
  CHECK(dense[2] == "model.layers.0.mlp.shared_expert_gate");
  CHECK(dense[3] == "model.layers.1.mlp.gate_up");
  train::TrainSettings settings;
  settings.on_cuda = true;
  settings.compute.precision = model::Precision::kBf16;
  for (const auto& parameter : model.parameters()) {
    if (parameter.name.find("shared_expert") != std::string::npos) {
      CHECK(train::has_bf16_copy(parameter, model.config(), settings) ==
            !parameter.name.ends_with("gate"));
    }
  }
}

TEST_CASE("--train refuses a weight whose adapter trains in its place") {
  struct Case {
    const char *on, *allowed;
    size_t trained;  // weights of `allowed` and adapters
    Names refused;
    const char* weight;
  };
  for (const auto& c : {Case{"attention", "experts", 4 + 12, {"attention", "*"}, ".self_attn."},
                        {"ffn", "attention", 6 + 12, {"experts", "dense"}, ".mlp.gate_up"}}) {
    const TempDir dir;
    auto model = load_tiny_mixture(dir, kTop1);
    model.add_lora({2, 2, {c.on}}, 0);
    CHECK(trained_names(model, {c.allowed, "*.lora_a"}).size() == c.trained);
    for (const auto& word : c.refused) {
      CHECK_THAT(user_error_of([&] { train::trainable(model, {word}); }),
                 contains_text(c.weight) && contains_text("--lora-on"));
    }
  }
}

TEST_CASE("--train with an unknown name is refused with the known ones") {
  const TempDir dir;
  const auto model = load_tiny_mixture(dir, kTop1);
  for (const auto& [word, fact] :
       {std::pair("expert", "did you mean 'experts'?"),
        std::pair("expert", "experts, router, attention"),
        std::pair("model.layers.9.*", "'model.layers.9.*'"), std::pair("*a*b*c*d*e", "4 stars")}) {
    CHECK_THAT(user_error_of([&] { train::trainable(model, {word}); }), contains_text(fact));
  }
}
