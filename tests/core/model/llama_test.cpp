// The model against a plain one in f64, against itself in other packings, and against a real
// checkpoint's reference.

#include "core/model/llama/llama.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/model/config/weights.h"
#include "core/model/llama/generate.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/matchers.h"
#include "tests/support/mixture.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

using at::Tensor;
using moe::model::Llama;
using moe::test::contains_text;

namespace {

// A LLaMA written the slow obvious way: one sequence, f64, one head and one query at a time.
class PlainLlama {
 public:
  explicit PlainLlama(const moe::io::Checkpoint& checkpoint)
      : checkpoint_(checkpoint),
        config_(moe::model::parse_config(checkpoint.config(), checkpoint.config_name())) {}

  Tensor logits(const std::vector<int64_t>& ids) const {
    Tensor x = weight("model.embed_tokens").index_select(0, at::tensor(ids, at::kLong));
    for (int64_t layer = 0; layer < config_.layers; ++layer) {
      const std::string prefix = fmt::format("model.layers.{}.", layer);
      x = x + attention(prefix + "self_attn.", norm(x, prefix + "input_layernorm"));
      const Tensor normed = norm(x, prefix + "post_attention_layernorm");
      x = x + (config_.is_moe_layer(layer)
                   ? mixture(prefix, normed)
                   : expert(prefix + "mlp.", {"gate_proj", "up_proj", "down_proj"}, normed));
    }
    return norm(x, "model.norm")
        .mm(weight(config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head").t());
  }

 private:
  Tensor weight(const std::string& name) const { return stored(name + ".weight"); }

  Tensor stored(const std::string& name) const {
    const auto& info = checkpoint_.info(name);
    const auto type = info.dtype == moe::io::DType::kF32    ? at::kFloat
                      : info.dtype == moe::io::DType::kBF16 ? at::kBFloat16
                                                            : at::kHalf;
    void* data = const_cast<std::byte*>(checkpoint_.bytes(info.name).data());
    return at::from_blob(data, info.shape, at::TensorOptions(type)).to(at::kDouble);
  }

  Tensor expert(const std::string& prefix, const std::array<const char*, 3>& names,
                const Tensor& x) const {
    const Tensor gate = x.mm(weight(prefix + names[0]).t());
    const Tensor up = x.mm(weight(prefix + names[1]).t());
    return (gate * gate.sigmoid() * up).mm(weight(prefix + names[2]).t());
  }

  // Stock mixtures: the k best of a softmax, renormalised or not, nothing dropped.
  Tensor mixture(const std::string& prefix, const Tensor& x) const {
    const bool mixtral = checkpoint_.config().at("model_type") == "mixtral";
    const std::string block = prefix + (mixtral ? "block_sparse_moe." : "mlp.");
    const std::array<const char*, 3> names =
        mixtral ? std::array{"w1", "w3", "w2"} : std::array{"gate_proj", "up_proj", "down_proj"};
    const bool normalised = mixtral || checkpoint_.config().at("norm_topk_prob").get<bool>();
    const int64_t k = checkpoint_.config().at("num_experts_per_tok").get<int64_t>();
    Tensor y = at::zeros_like(x);
    for (int64_t token = 0; token < x.size(0); ++token) {
      const Tensor row = x.narrow(0, token, 1);
      const auto [share, best] = row.mm(weight(block + "gate").t()).softmax(1).topk(k, 1);
      for (int64_t i = 0; i < k; ++i) {
        const Tensor gate = share[0][i] / (normalised ? share.sum() : at::ones({}, at::kDouble));
        const std::string chosen = fmt::format("{}experts.{}.", block, best[0][i].item<int64_t>());
        y[token] += gate * expert(chosen, names, row)[0];
      }
    }
    if (config_.moe->shared_expert_width > 0) {
      y = y + x.mm(weight(block + "shared_expert_gate").t()).sigmoid() *
                  expert(block + "shared_expert.", names, x);
    }
    return y;
  }

  Tensor norm(const Tensor& x, const std::string& name) const {
    return x / at::sqrt(x.pow(2).mean(-1, true) + config_.rms_norm_eps) * weight(name);
  }

  // Pair (i, i + A / 2) of a head rotated by position * theta^(-2 i / A).
  Tensor rotated(const Tensor& head, int64_t position) const {
    Tensor out = head.clone();
    const int64_t half = config_.head_dim / 2;
    for (int64_t i = 0; i < half; ++i) {
      const double angle =
          static_cast<double>(position) *
          std::pow(config_.rope.theta, -2.0 * static_cast<double>(i) / config_.head_dim);
      out[i] = head[i] * std::cos(angle) - head[i + half] * std::sin(angle);
      out[i + half] = head[i + half] * std::cos(angle) + head[i] * std::sin(angle);
    }
    return out;
  }

  Tensor attention(const std::string& prefix, const Tensor& x) const {
    const int64_t count = x.size(0), width = config_.head_dim;
    const auto heads = [&](const char* name, int64_t number) {
      Tensor out = x.mm(weight(prefix + name).t());
      if (checkpoint_.has(prefix + name + ".bias")) {
        out = out + stored(prefix + name + ".bias");
      }
      out = out.view({count, number, width});
      const std::string head_norm = prefix + name[0] + "_norm";
      return checkpoint_.has(head_norm + ".weight") ? norm(out, head_norm) : out;
    };
    const Tensor query = heads("q_proj", config_.heads), key = heads("k_proj", config_.kv_heads);
    const Tensor value = heads("v_proj", config_.kv_heads);
    Tensor out = at::zeros({count, config_.heads, width}, at::kDouble);
    for (int64_t head = 0; head < config_.heads; ++head) {
      const int64_t shared = head / (config_.heads / config_.kv_heads);
      for (int64_t i = 0; i < count; ++i) {
        Tensor scores = at::zeros({i + 1}, at::kDouble);
        for (int64_t j = 0; j <= i; ++j) {
          scores[j] = rotated(query[i][head], i).dot(rotated(key[j][shared], j));
        }
        const Tensor share = (scores / std::sqrt(static_cast<double>(width))).softmax(0);
        out[i][head] = share.matmul(value.narrow(0, 0, i + 1).select(1, shared));
      }
    }
    return out.view({count, config_.heads * width}).mm(weight(prefix + "o_proj").t());
  }

  const moe::io::Checkpoint& checkpoint_;
  moe::model::ModelConfig config_;
};

Tensor run(const Llama& model, const std::vector<int64_t>& ids,
           const std::vector<int64_t>& lengths) {
  const at::NoGradGuard no_gradients;
  return model.head(
      model.forward({at::tensor(ids, at::kLong), lengths}, model.default_routing()).hidden);
}

// f32 against f64 through three layers of a few hundred terms each, logits of order 1.
constexpr double kTolerance = 1e-5;

double distance(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

}  // namespace

TEST_CASE("the model equals a plain f64 LLaMA", "[model]") {
  moe::test::TinyCheckpoint options;
  const auto variant = GENERATE(0, 1, 2, 3, 4);
  options.tied = variant == 1;
  options.kv_heads = variant == 2 ? 4 : 2;
  options.head_dim = variant == 3 ? 6 : 0;  // heads * head_dim != hidden
  options.dtype = variant == 4 ? moe::io::DType::kBF16 : moe::io::DType::kF32;
  CAPTURE(variant);
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", options);
  const moe::io::Checkpoint checkpoint(folder / "m");
  const std::vector<int64_t> ids{1, 5, 63, 0, 5, 17, 2};
  CHECK(distance(run(Llama::load(checkpoint), ids, {7}), PlainLlama(checkpoint).logits(ids)) <
        kTolerance);
}

using moe::test::Foreign;
using moe::test::ForeignCheckpoint;

// Qwen2-MoE with biases, without, with dense layers; Qwen3-MoE, and with dense layers; Mistral,
// Qwen2 tied, Qwen3 with heads * head_dim != hidden, tied; a Mixtral in bf16; Qwen2-MoE with shared
// experts, wide and in bf16 with dense layers.
constexpr int kForeignVariants = 12;
ForeignCheckpoint foreign_variant(int variant) {
  switch (variant) {
    case 0:
      return {.dense_layers = {}};
    case 1:
      return {.kind = Foreign::kQwen2Moe, .dense_layers = {}};
    case 2:
      return {.kind = Foreign::kQwen2Moe, .normalised = false, .biases = false, .dense_layers = {}};
    case 3:
      return {.kind = Foreign::kQwen2Moe, .normalised = false, .dense_layers = {0, 2}};
    case 4:
      return {.kind = Foreign::kQwen3Moe, .dense_layers = {}};
    case 5:
      return {.kind = Foreign::kQwen3Moe,
              .normalised = false,
              .dense_layers = {1},
              .tiny = {.head_dim = 6}};
    case 6:
      return {.kind = Foreign::kMistral, .dense_layers = {}};
    case 7:
      return {.kind = Foreign::kQwen2, .dense_layers = {}, .tiny = {.tied = true}};
    case 8:
      return {.kind = Foreign::kQwen3, .dense_layers = {}, .tiny = {.head_dim = 6, .tied = true}};
    case 9:
      return {.dense_layers = {}, .tiny = {.dtype = moe::io::DType::kBF16, .shard_bytes = 9000}};
    case 10:
      return {.kind = Foreign::kQwen2Moe, .dense_layers = {}, .shared_width = 40};
    default:
      return {.kind = Foreign::kQwen2Moe,
              .normalised = false,
              .dense_layers = {1},
              .shared_width = 20,
              .tiny = {.dtype = moe::io::DType::kBF16, .shard_bytes = 9000}};
  }
}

TEST_CASE("a folder made elsewhere equals a plain f64 stock model", "[model]") {
  const auto variant = GENERATE(range(0, kForeignVariants));
  CAPTURE(variant);
  const moe::test::TempDir folder;
  moe::test::write_foreign_checkpoint(folder / "m", foreign_variant(variant));
  const moe::io::Checkpoint checkpoint(folder / "m");
  const std::vector<int64_t> ids{1, 5, 63, 0, 5, 17, 2};
  CHECK(distance(run(Llama::load(checkpoint), ids, {7}), PlainLlama(checkpoint).logits(ids)) <
        kTolerance);
}

namespace {

Llama load_mapped(const std::filesystem::path& folder) {
  return Llama::load(moe::io::Checkpoint(folder), {}, at::kCPU, moe::model::Storage::kStored);
}

// The line of /proc/self/maps for an address.
std::string mapping_of(const void* address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    std::istringstream(line) >> std::hex >> begin >> dash >> end;
    if (reinterpret_cast<uintptr_t>(address) >= begin &&
        reinterpret_cast<uintptr_t>(address) < end) {
      return line;
    }
  }
  return "nothing";
}

uint64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) {
      return std::stoull(line.substr(8)) * 1024;
    }
  }
  return 0;
}

}  // namespace

TEST_CASE("matrices may stay in the type they are stored in, for the same logits", "[model]") {
  const std::vector<int64_t> ids{1, 5, 63, 0, 5, 17, 2};
  std::vector<int64_t> many;
  for (int64_t i = 0; i < 60; ++i) {
    many.push_back(i * 7 % 64);
  }
  const moe::test::TempDir folder;
  const auto check = [&](const std::string& name, at::ScalarType type, double most) {
    INFO(name);
    const moe::io::Checkpoint checkpoint(folder / name);
    const auto stored = load_mapped(folder / name);
    for (const auto& [info, tensor, begin] : stored.folder_tensors(stored.default_routing())) {
      const bool is_matrix = info.shape.size() > 1 && info.elements() > 0 &&
                             !moe::model::is_router(info.name) &&
                             !moe::model::is_shared_expert_gate(info.name);
      CAPTURE(info.name);
      CHECK(tensor.scalar_type() == (is_matrix ? type : at::kFloat));
    }
    const auto wide = Llama::load(checkpoint);
    // Few rows with a matrix in f32 that is not mapped are LibTorch's, in an order of its own.
    CHECK(distance(run(stored, many, {60}), run(wide, many, {60})) <= most);
    CHECK(distance(run(stored, ids, {7}), run(wide, ids, {7})) < kTolerance);
    CHECK(distance(run(stored, {1, 5, 9}, {3}), run(wide, {1, 5, 9}, {3})) < kTolerance);
    const auto again = stored.clone();  // in f32
    CHECK(distance(run(again, ids, {7}), run(wide, ids, {7})) == 0);
  };
  using moe::io::DType;
  for (const auto& [dtype, type] : {std::pair(DType::kF32, at::kFloat),
                                    {DType::kBF16, at::kBFloat16},
                                    {DType::kF16, at::kHalf}}) {
    for (const bool is_tied : {false, true}) {
      const std::string name =
          fmt::format("{} {}", moe::io::dtype_name(dtype), is_tied ? "tied" : "dense");
      moe::test::write_tiny_checkpoint(folder / name, {.dtype = dtype, .tied = is_tied});
      check(name, type, 0);
    }
    for (const Foreign kind : {Foreign::kQwen2Moe, Foreign::kMixtral}) {
      const std::string name =
          fmt::format("{} {}", moe::io::dtype_name(dtype), static_cast<int>(kind));
      moe::test::write_foreign_checkpoint(
          folder / name, {.kind = kind,
                          .dense_layers = kind == Foreign::kMixtral ? std::vector<int64_t>{}
                                                                    : std::vector<int64_t>{0},
                          .tiny = {.dtype = dtype, .shard_bytes = 9000}});
      check(name, type, kTolerance);
    }
    const std::string shared = fmt::format("{} shared", moe::io::dtype_name(dtype));
    moe::test::write_foreign_checkpoint(folder / shared, {.kind = Foreign::kQwen2Moe,
                                                          .dense_layers = {0},
                                                          .shared_width = 20,
                                                          .tiny = {.dtype = dtype}});
    check(shared, type, kTolerance);
  }
  moe::test::write_foreign_checkpoint(
      folder / "head norms",
      {.kind = Foreign::kQwen3, .dense_layers = {}, .tiny = {.dtype = DType::kBF16}});
  check("head norms", at::kBFloat16, 0);
}

TEST_CASE("a mapped model has its matrices in its files, where nothing can be written", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_foreign_checkpoint(folder / "m", foreign_variant(9));
  const auto model = load_mapped(folder / "m");
  const auto routing = model.default_routing();
  size_t matrices = 0;
  for (const auto& [info, tensor, begin] : model.folder_tensors(routing)) {
    if (tensor.scalar_type() == at::kBFloat16) {
      CAPTURE(info.name);
      const std::string line = mapping_of(tensor.const_data_ptr());
      CHECK_THAT(line, moe::test::contains_text(" r--s "));
      CHECK_THAT(line, moe::test::contains_text(".safetensors"));
      ++matrices;
    }
  }
  CHECK(matrices > 10);
  CHECK(model.mapped_bytes() > 0);
  CHECK(Llama::load(moe::io::Checkpoint(folder / "m")).mapped_bytes() == 0);
  // Files that go are held until the model goes.
  const auto before = run(model, {1, 5, 63, 0, 5, 17, 2}, {7});
  std::filesystem::remove_all(folder / "m");
  CHECK(at::equal(run(model, {1, 5, 63, 0, 5, 17, 2}, {7}), before));
  CHECK_THROWS(model.parameters());
}

TEST_CASE("a matrix that lies between the addresses of its type is copied", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", {.dtype = moe::io::DType::kBF16});
  const auto path = folder / "m" / "model.safetensors";
  const std::vector<int64_t> ids{1, 5, 63, 0, 5, 17, 2};
  const Tensor expected = run(load_mapped(folder / "m"), ids, {7});
  std::string file = moe::test::read_file(path);
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  const uint64_t odd = header + 1;
  std::memcpy(file.data(), &odd, 8);
  file.insert(8 + header, " ");
  std::ofstream(path, std::ios::binary) << file;
  const auto model = load_mapped(folder / "m");
  for (const auto& [info, tensor, begin] : model.folder_tensors(model.default_routing())) {
    CHECK(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 2 == 0);
  }
  CHECK(at::equal(run(model, ids, {7}), expected));
}

TEST_CASE("a mapped model takes no memory for its weights", "[model]") {
  // 4 GB of zeros that the disk does not hold: what counts is where they lie.
  const moe::test::TinyCheckpoint big{.hidden = 2048,
                                      .intermediate = 11264,
                                      .layers = 26,
                                      .heads = 16,
                                      .kv_heads = 4,
                                      .vocab = 4096,
                                      .dtype = moe::io::DType::kBF16};
  const moe::test::TempDir folder;
  const uint64_t weights = moe::test::write_sparse_checkpoint(folder / "m", big);
  REQUIRE(weights > 4'000'000'000);
  const at::NoGradGuard no_gradients;
  const std::vector<int64_t> ids{1, 5, 63, 0, 5, 17, 2};
  run(load_mapped(folder / "m"), {1}, {1});  // what the first products of a process take
  const uint64_t before = anonymous_bytes();
  const auto model = load_mapped(folder / "m");
  const uint64_t loaded = anonymous_bytes();
  run(model, ids, {7});
  run(model, {3}, {1});
  const uint64_t asked = anonymous_bytes();
  CHECK(loaded < before + weights / 200);
  CHECK(asked < before + weights / 20);
  CHECK(asked > 0);
}

TEST_CASE("a folder made elsewhere is written with its own tensors, byte for byte", "[model]") {
  const auto variant = GENERATE(range(0, kForeignVariants));
  CAPTURE(variant);
  const moe::test::TempDir folder;
  moe::test::write_foreign_checkpoint(folder / "m", foreign_variant(variant));
  const moe::io::Checkpoint parent(folder / "m");
  const auto model = Llama::load(parent);
  moe::model::save_folder(model, model.default_routing(), parent, folder / "copy", false);
  const moe::io::Checkpoint copy(folder / "copy");
  CHECK(copy.tensors().size() == parent.tensors().size());
  for (const auto& info : parent.tensors()) {
    CAPTURE(info.name);
    REQUIRE(copy.has(info.name));
    CHECK(copy.info(info.name).dtype == info.dtype);
    CHECK(copy.info(info.name).shape == info.shape);
    const auto a = parent.bytes(info.name), b = copy.bytes(info.name);
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
  CHECK(copy.config().at("architectures") == parent.config().at("architectures"));
  CHECK(copy.config().at("model_type") == parent.config().at("model_type"));
  const std::vector<int64_t> ids{1, 5, 63, 0, 5, 17, 2};
  CHECK(distance(run(Llama::load(copy), ids, {7}), run(model, ids, {7})) == 0);
}

TEST_CASE("a Mixtral whose router it has no words for is written in our form", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_foreign_checkpoint(folder / "m");
  const moe::io::Checkpoint parent(folder / "m");
  const auto model = Llama::load(parent);
  auto routing = model.default_routing();
  routing.router = moe::route::parse_router("top2:cf=inf,gate=none");
  moe::model::save_folder(model, routing, parent, folder / "copy", false);
  const moe::io::Checkpoint copy(folder / "copy");
  CHECK(copy.config().at("model_type") == "qwen2_moe");
  CHECK(copy.has("model.layers.0.mlp.experts.3.down_proj.weight"));
  const auto again = Llama::load(copy);
  const moe::model::Packed tokens{at::tensor({1, 5, 63, 0, 5, 17, 2}, at::kLong), {7}};
  const at::NoGradGuard no_gradients;
  CHECK(distance(again.forward(tokens, again.default_routing()).hidden,
                 model.forward(tokens, routing).hidden) == 0);
}

TEST_CASE("a cache gives the logits of the whole sequence with biases and head norms too",
          "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_foreign_checkpoint(folder / "m", foreign_variant(GENERATE(1, 4, 8)));
  const auto model = Llama::load(moe::io::Checkpoint(folder / "m"));
  const Tensor whole = run(model, {1, 5, 9}, {3});
  const at::NoGradGuard no_gradients;
  moe::model::KvCache cache(model.config());
  const auto part = [&](const std::vector<int64_t>& ids) {
    const auto count = static_cast<int64_t>(ids.size());
    return model.head(
        model
            .forward({.ids = at::tensor(ids, at::kLong), .lengths = {count}, .caches = {&cache}},
                     model.default_routing())
            .hidden);
  };
  CHECK(distance(part({1, 5}), whole.narrow(0, 0, 2)) < kTolerance);
  CHECK(distance(part({9}), whole.narrow(0, 2, 1)) < kTolerance);
}

TEST_CASE("a pack of sequences gives each sequence's own logits", "[model]") {
  const moe::test::TempDir folder;
  if (GENERATE(false, true)) {
    moe::test::write_foreign_checkpoint(folder / "m", foreign_variant(8));  // head norms
  } else {
    moe::test::write_tiny_checkpoint(folder / "m", {});
  }
  const auto model = Llama::load(moe::io::Checkpoint(folder / "m"));
  const std::vector<int64_t> ids{1, 5, 9, 1, 7, 2, 1, 8, 3, 3, 4};
  const std::vector<int64_t> lengths{3, 3, 1, 4};  // two alike, one of a single token
  const Tensor packed = run(model, ids, lengths);
  int64_t first = 0;
  for (const int64_t length : lengths) {
    const std::vector<int64_t> alone(ids.begin() + first, ids.begin() + first + length);
    CHECK(distance(packed.narrow(0, first, length), run(model, alone, {length})) < kTolerance);
    first += length;
  }
}

TEST_CASE("sequences that go on from one give the logits of each spelt out", "[model]") {
  const moe::test::TempDir dir;
  if (GENERATE(false, true)) {
    moe::test::write_foreign_checkpoint(dir / "model", foreign_variant(8));  // head norms
  } else {
    moe::test::write_tiny_checkpoint(dir / "model", {});
  }
  const Llama model = Llama::load(moe::io::Checkpoint(dir / "model"));
  at::manual_seed(9);
  const Tensor ids = at::randint(64, {6 + 3 + 1 + 4 + 6 + 5 + 2}, at::kLong);
  // A question of 6 tokens with three answers, a sequence alone, a question of 5 with one answer.
  const moe::model::Packed shared{ids, {6, 3, 1, 4, 6, 5, 2}, {-1, 0, 0, 0, -1, -1, 5}};
  const Tensor logits = model.head(model.forward(shared, {}).hidden);
  int64_t first = 0;
  std::vector<int64_t> starts;
  for (size_t i = 0; i < shared.lengths.size(); ++i) {
    starts.push_back(first);
    const int64_t length = shared.lengths[i], prefix = shared.continues[i];
    const int64_t before = prefix < 0 ? 0 : shared.lengths[prefix];
    const Tensor start = prefix < 0 ? ids.narrow(0, 0, 0) : ids.narrow(0, starts[prefix], before);
    const Tensor spelt_out = at::cat({start, ids.narrow(0, first, length)});
    const Tensor expected = model.head(model.forward({spelt_out, {before + length}}, {}).hidden);
    // The same products; sums over keys in another order.
    CHECK(at::allclose(logits.narrow(0, first, length), expected.narrow(0, before, length), 1e-5,
                       1e-5));
    first += length;
  }
}

TEST_CASE("rows that are asked for are those of the whole, whatever the last layer is", "[model]") {
  const moe::test::TempDir dir;
  moe::test::write_tiny_checkpoint(dir / "dense", {});
  const int kind = GENERATE(0, 1, 2, 3);
  if (kind == 0) {
    moe::test::write_foreign_checkpoint(dir / "model", foreign_variant(8));  // head norms
  } else if (kind == 1) {
    moe::test::write_mixture(dir / "dense", dir / "model", {.router = "top1", .router_std = 1.0});
  } else if (kind == 2) {  // a mixture in the last layer
    moe::test::write_foreign_checkpoint(dir / "model",
                                        {.kind = moe::test::Foreign::kMixtral, .dense_layers = {}});
  }
  Llama model = Llama::load(moe::io::Checkpoint(dir / (kind == 3 ? "dense" : "model")));
  model.set_compute(
      {.precision = GENERATE(moe::model::Precision::kF32, moe::model::Precision::kBf16)});
  at::manual_seed(11);
  const at::NoGradGuard no_gradients;
  // A question of 6 tokens with two answers, a sequence of one token, one of 5.
  moe::model::Packed tokens{
      at::randint(64, {6 + 3 + 2 + 1 + 5}, at::kLong), {6, 3, 2, 1, 5}, {-1, 0, 0, -1, -1}};
  const auto routing = model.default_routing();
  const Tensor whole = model.forward(tokens, routing).hidden;
  for (const std::vector<int64_t>& rows :
       {std::vector<int64_t>{16},
        {0},
        {5, 6, 7, 9},
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}) {
    tokens.output_rows = at::tensor(rows, at::kLong);
    const Tensor some = model.forward(tokens, routing).hidden;
    // The same products, for fewer rows perhaps by another kernel: sums in another order.
    CHECK(some.sizes() == at::IntArrayRef({static_cast<int64_t>(rows.size()), whole.size(1)}));
    CHECK(at::allclose(some, whole.index_select(0, tokens.output_rows), 1e-5, 1e-5));
  }
}

TEST_CASE("a cache gives the logits of the whole sequence", "[model]") {
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", {});
  const auto model = Llama::load(moe::io::Checkpoint(folder / "m"));
  const std::vector<int64_t> ids{1, 5, 9, 11, 7, 2, 40};
  const Tensor whole = run(model, ids, {7});
  const at::NoGradGuard no_gradients;
  moe::model::KvCache cache(model.config());
  int64_t first = 0;
  for (const int64_t count : {3, 1, 2, 1}) {  // one token and several after a past
    const std::vector<int64_t> part(ids.begin() + first, ids.begin() + first + count);
    const Tensor hidden =
        model
            .forward({.ids = at::tensor(part, at::kLong), .lengths = {count}, .caches = {&cache}},
                     model.default_routing())
            .hidden;
    CHECK(distance(model.head(hidden), whole.narrow(0, first, count)) < kTolerance);
    first += count;
  }
}

TEST_CASE("a text is read up to the length of a window, a longer one is refused", "[model]") {
  const moe::test::TempDir folder;
  moe::test::ForeignCheckpoint options{.kind = moe::test::Foreign::kMistral, .dense_layers = {}};
  moe::test::write_foreign_checkpoint(folder / "m", options);
  const Tensor whole = run(Llama::load(moe::io::Checkpoint(folder / "m")), {1, 5, 9, 11}, {4});
  auto config = moe::Json::parse(moe::test::read_file(folder / "m/config.json"));
  config["sliding_window"] = 4;
  std::ofstream(folder / "m/config.json") << config;
  const auto model = Llama::load(moe::io::Checkpoint(folder / "m"));
  CHECK(distance(run(model, {1, 5, 9, 11}, {4}), whole) == 0);
  CHECK(distance(run(model, {7, 1, 5, 9, 11}, {1, 4}).narrow(0, 1, 4), whole) < kTolerance);
  const std::string refusal =
      "a text of 5 tokens is longer than the 4 of sliding_window in config.json";
  const auto said = [&](const moe::model::Packed& tokens) {
    return moe::test::user_error_of([&] { model.forward(tokens, {}); });
  };
  const Tensor ids = at::tensor({1, 5, 9, 11, 2}, at::kLong);
  CHECK_THAT(said({ids, {5}}), contains_text(refusal));
  CHECK_THAT(said({ids, {3, 2}, {-1, 0}}), contains_text(refusal));
  CHECK(said({ids, {3, 1, 1}, {-1, 0, 0}}).empty());
  const at::NoGradGuard no_gradients;
  moe::model::KvCache cache(model.config());
  CHECK(said({ids.narrow(0, 0, 3), {3}, {}, {&cache}}).empty());
  CHECK(said({ids.narrow(0, 3, 1), {1}, {}, {&cache}}).empty());
  CHECK_THAT(said({ids.narrow(0, 4, 1), {1}, {}, {&cache}}), contains_text(refusal));
}

TEST_CASE("a saved folder loads to the same model, bit for bit", "[model]") {
  const auto dtype = GENERATE(moe::io::DType::kF32, moe::io::DType::kBF16, moe::io::DType::kF16);
  moe::test::TinyCheckpoint options;
  options.dtype = dtype;
  const moe::test::TempDir folder;
  moe::test::write_tiny_checkpoint(folder / "m", options);
  const moe::io::Checkpoint parent(folder / "m");
  const auto model = Llama::load(parent);
  moe::model::save_folder(model, model.default_routing(), parent, folder / "copy", false);
  const moe::io::Checkpoint copy(folder / "copy");
  for (const auto& info : parent.tensors()) {
    CAPTURE(info.name);
    REQUIRE(copy.has(info.name));
    const auto a = parent.bytes(info.name), b = copy.bytes(info.name);
    CHECK(std::equal(a.begin(), a.end(), b.begin(), b.end()));
  }
}

TEST_CASE("every parameter gets a gradient", "[model]") {
  const moe::test::TempDir folder;
  // LLaMA; biases and routers; head norms and routers; shared experts.
  const auto variant = GENERATE(-1, 1, 4, 10);
  if (variant >= 0) {
    moe::test::write_foreign_checkpoint(folder / "m", foreign_variant(variant));
  } else {
    moe::test::write_tiny_checkpoint(folder / "m", {});
  }
  auto model = Llama::load(moe::io::Checkpoint(folder / "m"));
  model.require_gradients();
  const auto result =
      model.forward({at::tensor({1, 5, 9, 2}, at::kLong), {4}}, model.default_routing());
  model.head(result.hidden).log_softmax(-1).select(1, 3).sum().backward();
  for (const auto& parameter : model.parameters()) {
    CAPTURE(parameter.name);
    REQUIRE(parameter.tensor.grad().defined());
    CHECK(parameter.tensor.grad().abs().sum().item<double>() > 0);
  }
}

TEST_CASE("the real model gives its reference ids, logits, text and losses", "[model]") {
  MOE_NEED_SHARED_DATA();
  const auto folder = moe::test::shared_data() / "stories260K-hf";
  const auto reference = moe::read_json(folder / "reference.json");
  const auto model = Llama::load(moe::io::Checkpoint(folder));
  const auto tokenizer = moe::io::Tokenizer::load(folder, model.config().vocab_size);

  std::vector<int64_t> prompt = tokenizer.encode(reference.at("prompt").get<std::string>());
  prompt.insert(prompt.begin(), tokenizer.bos_id());
  REQUIRE(prompt == reference.at("prompt_ids_with_bos").get<std::vector<int64_t>>());
  const Tensor logits = run(model, prompt, {static_cast<int64_t>(prompt.size())})[-1];
  const auto expected = reference.at("last_position_logits").get<std::vector<double>>();
  CHECK(distance(logits, at::tensor(expected, at::kDouble)) < 1e-4);

  moe::model::GenerateSettings settings;
  settings.max_tokens = 256;
  auto greedy = moe::model::generate(model, model.default_routing(), {1}, settings);
  greedy.insert(greedy.begin(), 1);
  CHECK(greedy == reference.at("greedy_256_from_bos_ids").get<std::vector<int64_t>>());
  CHECK(tokenizer.decode(greedy) == reference.at("greedy_256_text").get<std::string>());

  const auto& story = reference.at("first_story");
  const auto ids = story.at("ids_with_bos").get<std::vector<int64_t>>();
  const auto count = static_cast<int64_t>(ids.size());
  const Tensor log_p = run(model, ids, {count}).log_softmax(-1);
  const Tensor nll =
      -log_p.narrow(0, 0, count - 1)
           .gather(1, at::tensor(ids, at::kLong).narrow(0, 1, count - 1).unsqueeze(1))
           .squeeze(1);
  const auto token_nll = story.at("token_nll").get<std::vector<double>>();
  CHECK(distance(nll, at::tensor(token_nll, at::kDouble)) < 1e-4);
}

TEST_CASE("a folder's bias chooses wherever the model is asked: mapped, saved, cloned, generating",
          "[model]") {
  const moe::test::TempDir dir;
  moe::test::write_tiny_checkpoint(dir / "dense");
  moe::test::write_mixture(
      dir / "dense", dir / "zero",
      {.router = "top1:cf=inf,gate=none,bias=0.01", .experts = 4, .router_std = 0.5});
  const moe::io::Checkpoint zero(dir / "zero");
  Llama model = Llama::load(zero);
  {
    const at::NoGradGuard no_grad;
    at::manual_seed(3);
    for (const auto& parameter : model.parameters()) {
      if (parameter.is_expert) {  // experts that differ, so that a choice shows
        Tensor(parameter.tensor) += at::randn_like(parameter.tensor) * 0.1;
      }
    }
  }
  CHECK(model.router_biases().size() == 2);
  moe::model::save_folder(model, model.default_routing(), zero, dir / "same", false);
  for (const Tensor& bias : model.router_biases()) {
    Tensor(bias).copy_(at::tensor({0.0, 5.0, 0.0, 0.0}, at::kFloat));  // all go to expert 1
  }
  const auto routing = model.default_routing();
  const moe::model::Packed tokens{at::arange(12, at::kLong) * 5 % 61, {12}};
  const auto expected = model.forward(tokens, routing);
  const at::NoGradGuard no_grad;
  for (const auto& values : moe::route::read_counters(expected.counters)) {
    CHECK(values.tokens_per_expert == std::vector<int64_t>{0, 12, 0, 0});
  }
  moe::model::save_folder(model, routing, zero, dir / "biased", false);
  const moe::io::Checkpoint biased(dir / "biased");
  const Llama loaded = Llama::load(biased);
  CHECK(loaded.default_routing().router == routing.router);
  const Llama mapped = Llama::load(biased, {}, at::kCPU, moe::model::Storage::kStored);
  for (const Llama* each : {&loaded, &mapped}) {
    CHECK(at::allclose(each->forward(tokens, routing).hidden, expected.hidden, 1e-4, 1e-4));
  }
  CHECK(at::equal(loaded.clone().forward(tokens, routing).hidden,
                  loaded.forward(tokens, routing).hidden));
  // Without it, and with zeros: the same, and another model.
  auto without = routing;
  without.router.bias_rate.reset();
  const Llama same = Llama::load(moe::io::Checkpoint(dir / "same"));
  CHECK(at::equal(loaded.forward(tokens, without).hidden, same.forward(tokens, routing).hidden));
  CHECK_FALSE(at::allclose(loaded.forward(tokens, without).hidden, expected.hidden, 1e-3, 1e-3));
}
