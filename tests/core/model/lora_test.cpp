// LoRA adapters against the model into whose weights they are merged.

#include "core/model/llama/llama.h"
#include "tests/support/catch.h"
#include "tests/support/loaded_mixture.h"

using namespace moe;
using at::Tensor;
using moe::model::Llama;
using moe::test::TempDir;

namespace {

Tensor logits_of(const Llama& model) {
  const model::Packed tokens{at::arange(40, at::kLong), {17, 23}};
  return model.head(model.forward(tokens, model.default_routing()).hidden);
}

bool is_adapter(const std::string& name) { return name.find(".lora_") != std::string::npos; }

// Fills all adapters with random numbers, as if they were trained.
void fill_adapters(const Llama& model) {
  at::manual_seed(5);
  for (const auto& parameter : model.parameters()) {
    if (is_adapter(parameter.name)) {
      Tensor(parameter.tensor).normal_(0, 0.1);
    }
  }
}

}  // namespace

TEST_CASE("new adapters change no bit, trained ones equal the weights they are merged into") {
  struct Case {
    std::vector<std::string> on;
    bool shared_expert;
    size_t matrices;  // with an adapter: 2 of attention and 2 of the feed-forward per layer
  };
  for (const Case& c : {Case{{"attention"}, false, 6}, Case{{"ffn"}, false, 6},
                        Case{{"attention", "ffn"}, false, 12}, Case{{"attention"}, true, 6},
                        Case{{"ffn"}, true, 10}}) {  // 2 shared experts more
    CAPTURE(c.on, c.shared_expert);
    const TempDir dir;
    Llama model = test::load_tiny_mixture(
        dir, {.router = "top2", .experts = 4, .shared_expert = c.shared_expert});
    const Tensor before = logits_of(model);
    const size_t weights = model.parameters().size();
    model.add_lora({3, 6, c.on}, 1);
    CHECK(model.parameters().size() == weights + 2 * c.matrices);
    CHECK(at::equal(logits_of(model), before));
    fill_adapters(model);
    const Tensor adapted = logits_of(model);
    CHECK((adapted - before).abs().max().item<double>() > 1e-3);
    const Llama merged = model.merged();
    CHECK(merged.lora().rank == 0);
    // Sums of 16 to 48 products in another order, through 3 layers.
    CHECK(at::allclose(logits_of(merged), adapted, 1e-4, 1e-5));
    CHECK(at::equal(logits_of(model.clone()), adapted));
    for (const auto& parameter : model.parameters()) {
      const bool is_shared = parameter.name.find("shared_expert") != std::string::npos;
      CHECK_FALSE((is_shared && parameter.is_expert));
    }
  }
}

TEST_CASE("the gradients of adapters follow from the gradient of the merged weight") {
  // y depends on a and b only through W + s b a. With G = d loss / d W: d b = s G a^T, d a = s b^T
  // G.
  const TempDir dir;
  Llama model = test::load_tiny_mixture(dir, {.router = "top2", .experts = 4});
  model.add_lora({3, 6, {"attention", "ffn"}}, 1);
  fill_adapters(model);
  Llama merged = model.merged();
  at::manual_seed(6);
  const Tensor upstream = at::randn({40, 64});
  for (Llama* one : {&model, &merged}) {
    one->require_gradients();
    (logits_of(*one) * upstream).sum().backward();
  }
  std::map<std::string, Tensor> whole;
  for (const auto& parameter : merged.parameters()) {
    whole[parameter.name] = parameter.tensor.grad();
  }
  std::map<std::string, Tensor> parts;
  for (const auto& parameter : model.parameters()) {
    parts[parameter.name] = parameter.tensor;
  }
  int64_t checked = 0;
  for (const auto& [name, a] : parts) {
    if (!name.ends_with(".lora_a")) {
      continue;
    }
    const std::string weight = name.substr(0, name.size() - 7);
    const Tensor b = parts.at(weight + ".lora_b");
    const Tensor of_b = at::matmul(whole.at(weight), a.transpose(-1, -2)) * 2.0;
    const Tensor of_a = at::matmul(b.transpose(-1, -2), whole.at(weight)) * 2.0;
    INFO(weight);
    // f32 sums over 40 tokens through 3 layers: 1e-4 of the largest entry.
    CHECK((b.grad() - of_b).abs().max().item<double>() < 1e-4 * of_b.abs().max().item<double>());
    CHECK((a.grad() - of_a).abs().max().item<double>() < 1e-4 * of_a.abs().max().item<double>());
    ++checked;
  }
  CHECK(checked == 12);
}
