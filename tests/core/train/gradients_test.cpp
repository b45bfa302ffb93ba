#include "core/train/step/gradients.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "core/train/step/optimizer.h"
#include "tests/support/mixture.h"
#include "tests/support/threads.h"

using namespace moe;
using namespace moe::train;
using at::Tensor;
using namespace moe::test;

namespace {

// Returns the head of a model that is not sharded.
Tensor head_weight(const model::Llama& model) {
  Tensor head;
  model.with_head([&](const Tensor& weight) { head = weight; });
  return head;
}

model::Llama load_for_training(const std::filesystem::path& folder) {
  auto model = model::Llama::load(io::Checkpoint(folder));
  model.require_gradients();
  return model;
}

model::Llama make_dense(bool tied = false) {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {.tied = tied});
  return load_for_training(dir / "dense");
}

model::Llama make_mixture(const std::string& router) {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense");
  write_mixture(dir / "dense", dir / "moe",
                {.router = router, .experts = 4, .router_std = 0.5, .ep_ranks = 2});
  return load_for_training(dir / "moe");
}

void remove_targets(data::Batch& batch) {
  std::fill(batch.targets.begin(), batch.targets.end(), data::kNoLoss);
  batch.target_count = 0;
}

// Rows of unequal length; about every second position has a target.
std::vector<data::Batch> random_batches(int64_t batches, int64_t rows) {
  std::vector<data::Batch> all;
  uint64_t state = 7;
  const auto random = [&](int64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<int64_t>((state >> 33) % static_cast<uint64_t>(below));
  };
  for (int64_t b = 0; b < batches; ++b) {
    data::Batch batch;
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t length = 3 + random(9);
      for (int64_t t = 0; t < length; ++t) {
        const bool learned = t + 1 < length && (t == 0 || random(2) == 0);
        batch.ids.push_back(random(64));
        batch.targets.push_back(learned ? random(64) : data::kNoLoss);
        batch.target_count += learned ? 1 : 0;
      }
      batch.lengths.push_back(length);
    }
    all.push_back(batch);
  }
  return all;
}

data::Batch joined(const std::vector<data::Batch>& batches) {
  data::Batch all;
  for (const auto& batch : batches) {
    all.ids.insert(all.ids.end(), batch.ids.begin(), batch.ids.end());
    all.targets.insert(all.targets.end(), batch.targets.begin(), batch.targets.end());
    all.lengths.insert(all.lengths.end(), batch.lengths.begin(), batch.lengths.end());
    all.target_count += batch.target_count;
  }
  return all;
}

std::vector<Tensor> take_gradients(const model::Llama& model) {
  std::vector<Tensor> gradients;
  for (const auto& parameter : model.parameters()) {
    gradients.push_back(parameter.tensor.grad().defined()
                            ? parameter.tensor.grad().clone()
                            : at::zeros_like(parameter.tensor.detach()));
    parameter.tensor.mutable_grad() = Tensor();
  }
  return gradients;
}

// Returns the largest norm of the difference of two gradients of a parameter, relative to the norm
// in `b`.
double distance(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double norm = b[i].norm().item<double>();
    largest = std::max(largest, (a[i] - b[i]).norm().item<double>() / (norm + 1e-12));
  }
  return largest;
}

void check_equal(const std::vector<Tensor>& gradients, const std::vector<Tensor>& expected) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    CHECK(at::equal(gradients[i], expected[i]));
  }
}

// Reference: all logits, one mean, one backward.
double plain_gradients(const model::Llama& model, const data::Batch& batch,
                       const model::RoutingOptions& routing) {
  const auto result = model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing);
  const Tensor loss =
      at::cross_entropy_loss(model.head(result.hidden), at::tensor(batch.targets, at::kLong), {},
                             at::Reduction::Mean, data::kNoLoss);
  loss.backward();
  return loss.item<double>();
}

// Balance loss of a step by plain loops over tokens, and its gradient with respect to the router of
// the last MoE layer [E, D], which depends on that layer alone. lb=first, one logical rank.
struct PlainBalance {
  double loss = 0;
  Tensor router;
};

PlainBalance plain_balance(const model::Llama& model, const std::vector<data::Batch>& batches,
                           const model::RoutingOptions& routing, route::LossGroup group) {
  std::map<int64_t, Tensor> routers;              // [E, D] f64, by layer
  std::map<int64_t, std::vector<Tensor>> inputs;  // [T, D] f64, by layer and micro-batch
  for (const auto& parameter : model.parameters()) {
    if (parameter.name.find("router") != std::string::npos) {
      routers[layer_index(parameter.name)] = parameter.tensor.detach().to(at::kDouble);
    }
  }
  double step_tokens = 0;
  for (const auto& batch : batches) {
    step_tokens += static_cast<double>(batch.ids.size());
    model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, routing,
                  [&](int64_t layer, const Tensor& input) {
                    inputs[layer].push_back(input.detach().to(at::kDouble));
                  });
  }
  PlainBalance balance;
  for (const auto& [layer, weight] : routers) {
    std::vector<Tensor> scores;  // [T, E]
    for (const Tensor& input : inputs[layer]) {
      scores.push_back(at::softmax(at::matmul(input, weight.t()), 1));
    }
    balance.router = at::zeros_like(weight);
    for (size_t own = 0; own < scores.size(); ++own) {
      Tensor f = at::zeros({weight.size(0)}, at::kDouble);
      double counted = 0;
      for (size_t other = 0; other < scores.size(); ++other) {
        const bool is_counted = group == route::LossGroup::kMicro     ? other == own
                                : group == route::LossGroup::kRunning ? other <= own
                                                                      : true;
        for (int64_t t = 0; is_counted && t < scores[other].size(0); ++t) {
          f[scores[other][t].argmax()] += 1;
          ++counted;
        }
      }
      f *= static_cast<double>(weight.size(0)) / counted;
      const auto tokens = scores[own].size(0);
      const double share = group == route::LossGroup::kMicro
                               ? 1.0 / static_cast<double>(tokens * std::ssize(scores))
                               : 1.0 / step_tokens;
      for (int64_t t = 0; t < tokens; ++t) {
        const Tensor g = scores[own][t], mean = (f * g).sum();
        balance.loss += mean.item<double>() * share;
        balance.router += at::outer(g * (f - mean), inputs[layer][own][t]) * share;
      }
    }
  }
  return balance;
}

// Returns the norm of the difference of two lists of gradients, relative to that of `b`: experts
// are equal, so that the gradient of one router may be rounding.
double whole_distance(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double apart = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    apart += (a[i] - b[i]).square().sum().item<double>();
    norm += b[i].square().sum().item<double>();
  }
  return std::sqrt(apart / norm);
}

// Large enough for every loop to run on eight threads.
void write_model(const TempDir& dir) {
  write_tiny_checkpoint(dir / "dense", {.hidden = 96,
                                        .intermediate = 160,
                                        .layers = 2,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .vocab = 1100,
                                        .max_positions = 600,
                                        .std = 0.05});
  write_mixture(dir / "dense", dir / "moe",
                {.router = "top2+ir+fr", .experts = 16, .router_std = 0.5});
}

data::Batch make_batch(int64_t number) {
  data::Batch batch;
  for (const int64_t length : {600, 333, 31, 200}) {
    for (int64_t t = 0; t < length; ++t) {
      const int64_t id = (t * t * 31 + t * 7 + number * 13 + length) % 1100;
      batch.ids.push_back(id);
      batch.targets.push_back(t + 1 < length ? (id * 3 + t) % 1100 : data::kNoLoss);
    }
    batch.lengths.push_back(length);
    batch.rows.push_back(length);
    batch.target_count += length - 1;
  }
  return batch;
}

std::vector<Tensor> trained(const TempDir& dir, model::Precision precision,
                            const std::string& router) {
  model::Llama model = model::Llama::load(io::Checkpoint(dir / "moe"));
  model.set_compute({precision});
  model.require_gradients();
  const auto parameters = trainable(model, {});
  Updater updater(parameters, AdamWSettings{}, /*seed=*/0, /*world=*/nullptr);
  model::RoutingOptions routing = model.default_routing();
  routing.router = route::parse_router(router);
  std::vector<Tensor> results;
  for (int64_t step = 0; step < 2; ++step) {
    updater.clear_gradients();
    const StepLosses losses =
        add_gradients(model, {make_batch(step)}, routing, {.load_balance = 0.01, .z = 0.001});
    const double norm = updater.gradient_norm();
    updater.step(norm, /*clip=*/0.1, /*lr=*/1e-2);
    results.push_back(at::tensor({losses.loss, losses.load_balance.value(), norm}, at::kDouble));
  }
  for (const auto& parameter : parameters) {
    results.push_back(parameter.tensor.detach().clone());
  }
  return results;
}

}  // namespace

// A gradient is a sum of about 100 rows of f32 products of length 16 to 64. Another order of
// summation changes it by at most sqrt(100 * 64) * 6e-8 = 5e-6, and usually by less than 1e-6 of
// its norm.
constexpr double kTolerance = 1e-6;

TEST_CASE("head_loss() in blocks of rows gives the loss and gradients of all logits at once") {
  for (const bool tied : {false, true}) {
    const auto model = make_dense(tied);
    const auto batch = random_batches(1, 12)[0];
    const double expected = plain_gradients(model, batch, {});
    const auto expected_gradients = take_gradients(model);
    for (const int64_t block_rows : {int64_t{1}, int64_t{7}, head_block_rows(64, false)}) {
      const auto result = model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, {});
      const double share = 1.0 / static_cast<double>(batch.target_count);
      const auto loss = head_loss(head_weight(model), result.hidden, batch.targets, share,
                                  at::kFloat, block_rows);
      loss.hidden.backward(loss.gradient);
      CHECK(loss.nll_sum.item<double>() * share == Approx(expected).epsilon(kTolerance));
      CHECK(distance(take_gradients(model), expected_gradients) < kTolerance);
    }
  }
}

TEST_CASE("splitting a global batch into micro-batches changes only a mixture with capacity") {
  const auto difference = [](const model::Llama& model) {
    const auto routing = model.default_routing();
    const auto six = random_batches(6, 2);
    CHECK(std::any_of(six.begin(), six.end(), [&](const data::Batch& batch) {
      return batch.target_count != six[0].target_count;  // a mean of means would differ
    }));
    const auto whole = add_gradients(model, {joined(six)}, routing, {});
    const auto whole_gradients = take_gradients(model);
    const auto cut = add_gradients(model, six, routing, {});
    const auto cut_gradients = take_gradients(model);
    CHECK((cut.target_tokens == whole.target_tokens && cut.tokens == whole.tokens));
    return std::max(whole_distance(cut_gradients, whole_gradients),
                    std::abs(cut.loss - whole.loss) / whole.loss);
  };
  CHECK(difference(make_dense()) < kTolerance);
  for (const char* router : {"top2:cf=inf", "topp:0.4", "relu:k=1"}) {
    CHECK(difference(make_mixture(router)) < kTolerance);
  }
  CHECK(difference(make_mixture("top1:cf=1")) > 1e-3);  // other tokens are dropped
}

TEST_CASE("micro-batches without targets add nothing, and a batch without targets has loss 0") {
  const auto model = make_dense();
  auto batches = random_batches(2, 3);
  remove_targets(batches[1]);
  const auto both = add_gradients(model, batches, {}, {});
  const auto gradients = take_gradients(model);
  const auto first = add_gradients(model, {batches[0]}, {}, {});
  CHECK(both.loss == first.loss);
  CHECK(distance(take_gradients(model), gradients) == 0);
  CHECK(add_gradients(model, {batches[1]}, {}, {}).loss == 0);
  CHECK(gradient_norm(held_slices(model.parameters())) == 0);
}

TEST_CASE("auxiliary losses are means over micro-batches, gradients linear in the coefficient") {
  const auto model = make_mixture("top1:st=off");
  const auto routing = model.default_routing();
  auto batches = random_batches(3, 3);
  double mean = 0;
  for (const auto& batch : batches) {
    mean += *add_gradients(model, {batch}, routing, {}).load_balance / 3;
  }
  take_gradients(model);
  const auto step = add_gradients(model, batches, routing, {});
  CHECK(*step.load_balance == Approx(mean).epsilon(kTolerance));
  CHECK(*step.load_balance > 0);
  REQUIRE(step.layers.size() == 2);  // layers 0 and 2 of 3
  CHECK(step.layers[0].tokens == step.tokens);
  CHECK(step.sparsity >= 0.75);  // top-1 of 4, some dropped

  // Without targets and straight-through estimator only alpha * L_b has a gradient, linear in
  // alpha.
  take_gradients(model);
  std::for_each(batches.begin(), batches.end(), remove_targets);
  add_gradients(model, batches, routing, {0.01, 0, 0});
  const auto small = take_gradients(model);
  add_gradients(model, batches, routing, {0.02, 0, 0});
  const auto large = take_gradients(model);
  double router_norm = 0;
  const auto parameters = model.parameters();
  for (size_t i = 0; i < small.size(); ++i) {
    CHECK((large[i] - 2 * small[i]).norm().item<double>() <= 1e-5 * large[i].norm().item<double>());
    if (parameters[i].name.find("router") != std::string::npos) {
      router_norm += small[i].norm().item<double>();
    }
  }
  CHECK(router_norm > 0);
}

TEST_CASE("z-loss and sequence balance are weighted by coefficients, computed only if on") {
  const auto model = make_mixture("top2");
  auto batches = random_batches(3, 3);
  // Without targets only the auxiliary losses remain.
  std::for_each(batches.begin(), batches.end(), remove_targets);
  const auto routing = model.default_routing();
  const auto off = add_gradients(model, batches, routing, {});
  CHECK_FALSE(off.z);
  CHECK_FALSE(off.sequence_balance);
  take_gradients(model);

  // Reference: forward of each micro-batch, losses times coefficient / number of micro-batches.
  auto with_losses = routing;
  with_losses.compute_z_loss = with_losses.compute_sequence_balance = true;
  double z = 0, sequence_balance = 0;
  for (const auto& batch : batches) {
    const auto losses =
        model.forward({at::tensor(batch.ids, at::kLong), batch.lengths}, with_losses).losses;
    (losses.z * (0.5 / 3) + losses.sequence_balance * (0.25 / 3)).backward();
    z += losses.z.item<double>() / 3;
    sequence_balance += losses.sequence_balance.item<double>() / 3;
  }
  const auto expected = take_gradients(model);
  const auto step = add_gradients(model, batches, routing, {0, 0, 0, 0.5, 0.25});
  CHECK(*step.z == Approx(z).epsilon(kTolerance));
  CHECK(*step.sequence_balance == Approx(sequence_balance).epsilon(kTolerance));
  const auto found = take_gradients(model);
  double norm = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    CHECK((found[i] - expected[i]).norm().item<double>() <=
          1e-5 * expected[i].norm().item<double>() + 1e-12);
    norm += expected[i].norm().item<double>();
  }
  CHECK(norm > 0);
  const auto only_z = add_gradients(model, batches, routing, {0, 0, 0, 0.5});
  CHECK(only_z.z);
  CHECK_FALSE(only_z.sequence_balance);
}

TEST_CASE("balance losses of a micro-batch, of a step so far and of a step equal plain loops") {
  const auto model = make_mixture("top2:cf=inf");
  auto routing = model.default_routing();
  routing.ep_ranks = 1;
  auto batches = random_batches(4, 3);
  std::for_each(batches.begin(), batches.end(), remove_targets);
  for (const auto group :
       {route::LossGroup::kMicro, route::LossGroup::kRunning, route::LossGroup::kGlobal}) {
    CAPTURE(static_cast<int>(group));
    routing.loss_group = group;
    const auto step = add_gradients(model, batches, routing, {.load_balance = 0.5});
    const auto gradients = take_gradients(model);
    const PlainBalance expected = plain_balance(model, batches, routing, group);
    CHECK(*step.load_balance == Approx(expected.loss).epsilon(kTolerance));
    const auto parameters = model.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].name == "model.layers.2.mlp.router") {
        CHECK(expected.router.norm().item<double>() > 0);
        CHECK(distance({gradients[i]}, {expected.router * 0.5}) < 2 * kTolerance);
      }
    }
  }
}

TEST_CASE("losses over a step equal those of one large batch for any split, also recomputed") {
  for (const char* router : {"top2:cf=inf", "top1:cf=inf,lb=selected,gate=none", "topp:0.4",
                             "relu:k=1", "relu:k=1,l1=plain"}) {
    CAPTURE(router);
    auto model = make_mixture(router);
    auto routing = model.default_routing();
    routing.ep_ranks = 1;
    const auto six = random_batches(6, 2);
    const bool is_softmax = routing.router.family->has_softmax_scores;
    const AuxCoefficients coefficients{is_softmax ? 0.5 : 0, 0.2, 0.5, is_softmax ? 0.1 : 0, 0};
    const auto whole = add_gradients(model, {joined(six)}, routing, coefficients);
    const auto expected = take_gradients(model);
    routing.loss_group = route::LossGroup::kGlobal;
    for (const auto& batches : std::vector<std::vector<data::Batch>>{
             {joined(six)},
             six,
             {joined({six[0], six[1]}), joined({six[2]}), joined({six[3], six[4], six[5]})}}) {
      CAPTURE(batches.size());
      for (const auto recompute : {model::Recompute::kNone, model::Recompute::kLayer}) {
        model.set_compute({model::Precision::kF32, recompute});
        const auto step = add_gradients(model, batches, routing, coefficients);
        const auto gradients = take_gradients(model);
        for (const auto loss : StepLosses::members()) {
          REQUIRE((step.*loss).has_value() == (whole.*loss).has_value());
          CHECK((step.*loss).value_or(0) == Approx((whole.*loss).value_or(0)).epsilon(kTolerance));
        }
        CHECK(step.layers[0].tokens == whole.tokens);  // a forward that only counts is not counted
        CHECK(whole_distance(gradients, expected) < kTolerance);
      }
    }
    routing.loss_group = route::LossGroup::kRank;
    const auto cut = add_gradients(model, six, routing, coefficients);
    take_gradients(model);
    const auto balance = is_softmax ? &StepLosses::load_balance : &StepLosses::l1;
    if (std::string(router) != "relu:k=1,l1=plain") {
      CHECK(std::abs(*(cut.*balance) - *(whole.*balance)) > 1e-3 * *(whole.*balance));
    }
  }
}

TEST_CASE("recomputed layers give equal bits") {
  const AuxCoefficients coefficients{0.01, 0.01, 0.1, 0.01, 0.01};
  for (const char* router : {"top1", "top2+ir+fr", "topp:0.4", "relu:k=1", "top2+ir+fr:bias=0.1"}) {
    auto model = make_mixture(router);
    for (const Tensor& bias : model.router_biases()) {
      at::Tensor(bias).copy_(at::arange(4) * 0.1);
    }
    for (const auto precision : {model::Precision::kF32, model::Precision::kBf16}) {
      const auto batches = random_batches(2, 3);
      model.set_compute({precision, model::Recompute::kNone});
      const auto expected = add_gradients(model, batches, model.default_routing(), coefficients);
      const auto expected_gradients = take_gradients(model);
      for (const auto recompute : {model::Recompute::kFeedForward, model::Recompute::kLayer}) {
        INFO(router);
        model.set_compute({precision, recompute});
        const auto found = add_gradients(model, batches, model.default_routing(), coefficients);
        CHECK(found.loss == expected.loss);
        CHECK(found.load_balance == expected.load_balance);
        CHECK(found.z == expected.z);
        CHECK(found.sequence_balance == expected.sequence_balance);
        CHECK(found.sparsity == expected.sparsity);
        CHECK(found.layers.size() == expected.layers.size());
        CHECK(found.layers[0].tokens == expected.layers[0].tokens);
        check_equal(take_gradients(model), expected_gradients);
      }
    }
  }
}

TEST_CASE("recomputed layers above frozen weights keep their gradients") {
  auto model = make_mixture("top2");
  std::vector<model::NamedParameter> trained;
  for (const auto& parameter : model.parameters()) {
    const bool is_trained = parameter.name.find(".mlp.") != std::string::npos;
    Tensor(parameter.tensor).requires_grad_(is_trained);
    if (is_trained) {
      trained.push_back(parameter);
    }
  }
  const auto batches = random_batches(1, 3);
  add_gradients(model, batches, model.default_routing(), {0.01, 0, 0});
  const auto expected = take_gradients(model);
  model.set_compute({model::Precision::kF32, model::Recompute::kLayer});
  add_gradients(model, batches, model.default_routing(), {0.01, 0, 0});
  CHECK(gradient_norm(held_slices(trained)) > 0);
  check_equal(take_gradients(model), expected);
}

TEST_CASE("loss and gradients in bf16 are those of f32 within the rounding of products") {
  auto model = make_dense();
  const auto batches = random_batches(2, 6);
  const double expected = add_gradients(model, batches, {}, {}).loss;
  const auto expected_gradients = take_gradients(model);
  model.set_compute({model::Precision::kBf16, model::Recompute::kNone});
  const double found = add_gradients(model, batches, {}, {}).loss;
  const auto gradients = take_gradients(model);
  // Rounding has an error of at most 2^-8 and a root mean square of 2^-8 / sqrt(3). Between a
  // weight and the loss are 3 layers of 4 products with two operands and a result each, forward and
  // backward: sqrt(3 * 4 * 3 * 2) = 8.5 such errors add as random ones to 1.9 % of a gradient. The
  // bound is twice that. The loss is a mean over some 70 targets.
  CHECK(distance(gradients, expected_gradients) < 0.038);
  CHECK(distance(gradients, expected_gradients) > 1e-4);  // the precision differs
  CHECK(found == Approx(expected).epsilon(0.002));
  CHECK(found != expected);
  for (const auto& gradient : gradients) {
    CHECK(gradient.scalar_type() == at::kFloat);
  }
}

TEST_CASE("training steps have equal bits with any number of threads") {
  const TempDir dir;
  write_model(dir);
  for (const auto& [precision, router] : {std::pair(model::Precision::kF32, "top2+ir+fr"),
                                          std::pair(model::Precision::kBf16, "top2:cf=inf")}) {
    CAPTURE(router);
    by_any_threads([&, p = precision, r = router] { return trained(dir, p, r); });
  }
}
