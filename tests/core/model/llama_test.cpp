// The model against a plain one in f64, against itself in other packings and storage types, and
// against transformers on trained checkpoints.

#include "core/model/llama/llama.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <variant>

#include "core/base/resources.h"
#include "core/model/config/weights.h"
#include "core/model/llama/generate.h"
#include "core/model/llama/memory_need.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/data.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/mixture.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::test;
using at::Tensor;
using model::Llama;
using Ids = std::vector<int64_t>;

namespace {

const Ids kIds = {1, 5, 63, 0, 5, 17, 2};

// A reference in f64, of one sequence.
class PlainLlama {
 public:
  explicit PlainLlama(const io::Checkpoint& checkpoint)
      : checkpoint_(checkpoint),
        config_(model::parse_config(checkpoint.config(), checkpoint.config_name())) {}

  Tensor logits(const Ids& ids) const {
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
    const auto type = info.dtype == io::DType::kF32    ? at::kFloat
                      : info.dtype == io::DType::kBF16 ? at::kBFloat16
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

  // Stock mixtures: top-k of a softmax, renormalised or not, nothing dropped.
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

  // Rotates pair (i, i + A / 2) of the heads [S, N, A] by position * theta^(-2 i / A).
  Tensor rotated(const Tensor& heads) const {
    const int64_t half = config_.head_dim / 2;
    const auto positions = at::arange(heads.size(0), at::kDouble).view({-1, 1, 1});
    const Tensor angle =
        positions * at::pow(config_.rope.theta, at::arange(half, at::kDouble) / -half);
    const Tensor low = heads.narrow(2, 0, half), high = heads.narrow(2, half, half);
    return at::cat({low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()},
                   2);
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
    const int64_t shares = config_.heads / config_.kv_heads;  // query heads of a key head
    const Tensor query = rotated(heads("q_proj", config_.heads));
    const Tensor key = rotated(heads("k_proj", config_.kv_heads)).repeat_interleave(shares, 1);
    const Tensor value = heads("v_proj", config_.kv_heads).repeat_interleave(shares, 1);
    const Tensor share = (at::einsum("ihd,jhd->hij", {query, key}) / std::sqrt(width))
                             .masked_fill(at::ones({count, count}, at::kBool).triu(1), -INFINITY)
                             .softmax(-1);
    return at::einsum("hij,jhd->ihd", {share, value})
        .reshape({count, -1})
        .mm(weight(prefix + "o_proj").t());
  }

  const io::Checkpoint& checkpoint_;
  model::ModelConfig config_;
};

Tensor run(const Llama& model, const Ids& ids, const Ids& lengths) {
  const at::NoGradGuard no_gradients;
  return model.head(
      model.forward({at::tensor(ids, at::kLong), lengths}, model.default_routing()).hidden);
}

// f32 against f64 through three layers of a few hundred terms each, logits of order 1.
constexpr double kTolerance = 1e-5;

double distance(const Tensor& a, const Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

// Folders of every architecture, by name.
const std::map<std::string, std::variant<TinyCheckpoint, ForeignCheckpoint>>& shapes() {
  using io::DType;
  static const std::map<std::string, std::variant<TinyCheckpoint, ForeignCheckpoint>> all = {
      {"llama", TinyCheckpoint{}},
      {"llama tied", TinyCheckpoint{.tied = true}},
      {"llama without GQA", TinyCheckpoint{.kv_heads = 4}},
      {"llama of wide heads", TinyCheckpoint{.head_dim = 6}},  // heads * head_dim != hidden
      {"llama bf16", TinyCheckpoint{.dtype = DType::kBF16}},
      {"llama f16", TinyCheckpoint{.dtype = DType::kF16}},
      {"qwen3 bf16",
       ForeignCheckpoint{
           .kind = Foreign::kQwen3, .dense_layers = {}, .tiny = {.dtype = DType::kBF16}}},
      {"mistral", ForeignCheckpoint{.kind = Foreign::kMistral, .dense_layers = {}}},
      {"qwen2",
       ForeignCheckpoint{.kind = Foreign::kQwen2, .dense_layers = {}, .tiny = {.tied = true}}},
      {"qwen3",
       ForeignCheckpoint{
           .kind = Foreign::kQwen3, .dense_layers = {}, .tiny = {.head_dim = 6, .tied = true}}},
      {"mixtral", ForeignCheckpoint{.dense_layers = {}}},
      {"mixtral bf16",
       ForeignCheckpoint{.dense_layers = {}, .tiny = {.dtype = DType::kBF16, .shard_bytes = 9000}}},
      {"qwen2_moe", ForeignCheckpoint{.kind = Foreign::kQwen2Moe, .dense_layers = {}}},
      {"qwen2_moe with dense layers", ForeignCheckpoint{.kind = Foreign::kQwen2Moe,
                                                        .normalised = false,
                                                        .biases = false,
                                                        .dense_layers = {0, 2}}},
      {"qwen2_moe with shared experts",
       ForeignCheckpoint{.kind = Foreign::kQwen2Moe, .dense_layers = {}, .shared_width = 40}},
      {"qwen2_moe bf16", ForeignCheckpoint{.kind = Foreign::kQwen2Moe,
                                           .normalised = false,
                                           .dense_layers = {1},
                                           .shared_width = 20,
                                           .tiny = {.dtype = DType::kBF16, .shard_bytes = 9000}}},
      {"qwen3_moe", ForeignCheckpoint{.kind = Foreign::kQwen3Moe, .dense_layers = {}}},
      {"qwen3_moe with dense layers", ForeignCheckpoint{.kind = Foreign::kQwen3Moe,
                                                        .normalised = false,
                                                        .dense_layers = {1},
                                                        .tiny = {.head_dim = 6}}}};
  return all;
}

void write_shape(const std::filesystem::path& folder, const std::string& name) {
  const auto& shape = shapes().at(name);
  if (const auto* foreign = std::get_if<ForeignCheckpoint>(&shape)) {
    write_foreign_checkpoint(folder, *foreign);
  } else {
    write_tiny_checkpoint(folder, std::get<TinyCheckpoint>(shape));
  }
}

void check_same_tensors(const io::Checkpoint& copy, const io::Checkpoint& parent) {
  CHECK(copy.tensors().size() == parent.tensors().size());
  for (const auto& info : parent.tensors()) {
    CAPTURE(info.name);
    REQUIRE(copy.has(info.name));
    CHECK(copy.info(info.name).dtype == info.dtype);
    CHECK(copy.info(info.name).shape == info.shape);
    CHECK(same_bytes(copy.bytes(info.name), parent.bytes(info.name)));
  }
}

Llama load_mapped(const std::filesystem::path& folder) {
  return Llama::load(io::Checkpoint(folder), {}, at::kCPU, model::Storage::kStored);
}

Tensor run_cached(const Llama& model, const Ids& ids, model::KvCache& cache) {
  const at::NoGradGuard no_gradients;
  const auto count = static_cast<int64_t>(ids.size());
  return model.head(
      model
          .forward({.ids = at::tensor(ids, at::kLong), .lengths = {count}, .caches = {&cache}},
                   model.default_routing())
          .hidden);
}

uint64_t anonymous_bytes() { return system_bytes("/proc/self/status", "RssAnon"); }

}  // namespace

TEST_CASE("the logits of every architecture equal those of a plain f64 model") {
  const TempDir folder;
  for (const auto& [name, shape] : shapes()) {
    CAPTURE(name);
    write_shape(folder / name, name);
    const io::Checkpoint checkpoint(folder / name);
    CHECK(distance(run(Llama::load(checkpoint), kIds, {7}), PlainLlama(checkpoint).logits(kIds)) <
          kTolerance);
  }
}

TEST_CASE("matrices may stay in the type they are stored in and give the same logits") {
  Ids many;
  for (int64_t i = 0; i < 60; ++i) {
    many.push_back(i * 7 % 64);
  }
  const TempDir folder;
  struct Case {
    std::string name;
    at::ScalarType type;
    double tolerance;
  };
  for (const Case& c :
       {Case{"llama", at::kFloat, 0}, Case{"llama tied", at::kFloat, 0},
        Case{"llama bf16", at::kBFloat16, 0}, Case{"llama f16", at::kHalf, 0},
        Case{"qwen3 bf16", at::kBFloat16, 0}, Case{"mixtral bf16", at::kBFloat16, kTolerance},
        Case{"qwen2_moe with shared experts", at::kFloat, kTolerance},
        Case{"qwen2_moe bf16", at::kBFloat16, kTolerance}}) {
    INFO(c.name);
    write_shape(folder / c.name, c.name);
    const auto stored = load_mapped(folder / c.name);
    for (const auto& [info, tensor, begin] : stored.folder_tensors(stored.default_routing())) {
      const bool is_matrix = info.shape.size() > 1 && info.elements() > 0 &&
                             !model::is_router(info.name) &&
                             !model::is_shared_expert_gate(info.name);
      CAPTURE(info.name);
      CHECK(tensor.scalar_type() == (is_matrix ? c.type : at::kFloat));
    }
    const auto wide = Llama::load(io::Checkpoint(folder / c.name));
    // LibTorch multiplies few rows by an unmapped f32 matrix, in another order of sums.
    CHECK(distance(run(stored, many, {60}), run(wide, many, {60})) <= c.tolerance);
    CHECK(distance(run(stored, kIds, {7}), run(wide, kIds, {7})) < kTolerance);
    const auto again = stored.clone();  // in f32
    CHECK(distance(run(again, kIds, {7}), run(wide, kIds, {7})) == 0);
  }
}

TEST_CASE("a matrix that is not aligned for its type is copied") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "m", {.dtype = io::DType::kBF16});
  const auto path = folder / "m" / "model.safetensors";
  const Tensor expected = run(load_mapped(folder / "m"), kIds, {7});
  std::string file = read_file(path);
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
  CHECK(at::equal(run(model, kIds, {7}), expected));
}

TEST_CASE("a mapped model takes no memory for its weights") {
  // 1 GB of zeros in a sparse file.
  const TinyCheckpoint big{.hidden = 2048,
                           .intermediate = 11264,
                           .layers = 6,
                           .heads = 16,
                           .kv_heads = 4,
                           .vocab = 4096,
                           .dtype = io::DType::kBF16};
  const TempDir folder;
  const uint64_t weights = write_sparse_checkpoint(folder / "m", big);
  REQUIRE(weights > 900'000'000);
  const at::NoGradGuard no_gradients;
  run(load_mapped(folder / "m"), {1}, {1});  // allocates the scratch memory of the process
  const uint64_t before = anonymous_bytes();
  const auto model = load_mapped(folder / "m");
  const uint64_t loaded = anonymous_bytes();
  run(model, kIds, {7});
  run(model, {3}, {1});
  const uint64_t after_forward = anonymous_bytes();
  CHECK(loaded < before + weights / 200);
  CHECK(after_forward < before + weights / 20);
  CHECK(after_forward > 0);
}

TEST_CASE("bytes_to_copy is the size of the weights that loading allocates") {
  const TempDir dir;
  const TinyCheckpoint bf16{.dtype = io::DType::kBF16};
  write_tiny_checkpoint(dir / "dense", bf16);
  write_foreign_checkpoint(
      dir / "shared expert",
      {.kind = Foreign::kQwen2Moe, .dense_layers = {}, .shared_width = 20, .tiny = bf16});
  for (const char* name : {"dense", "shared expert"}) {
    INFO(name);
    const io::Checkpoint checkpoint(dir / name);
    const model::ModelConfig config =
        model::parse_config(checkpoint.config(), checkpoint.config_name());
    uint64_t copied = 0;  // norms, routers and the gates of shared experts; matrices are mapped
    const Llama mapped = Llama::load(checkpoint, {}, at::kCPU, model::Storage::kStored);
    for (const auto& [info, tensor, begin] : mapped.folder_tensors(mapped.default_routing())) {
      copied += tensor.scalar_type() == at::kFloat ? tensor.nbytes() : 0;
    }
    CHECK(copied > 0);
    CHECK(model::bytes_to_copy(config, model::Storage::kStored, at::kCPU) == copied);
    CHECK(model::bytes_to_copy(config, model::Storage::kStored, {at::kCUDA, 0}) == 0);
  }
  const io::Checkpoint dense(dir / "dense");
  const Llama wide = Llama::load(dense);
  uint64_t all = 0;
  for (const auto& parameter : wide.parameters()) {
    all += parameter.tensor.nbytes();
  }
  CHECK(model::bytes_to_copy(wide.config(), model::Storage::kF32, at::kCPU) == all);
}

TEST_CASE("a saved folder of every architecture has the tensors of its parent, byte for byte") {
  const TempDir folder;
  for (const auto& [name, shape] : shapes()) {
    CAPTURE(name);
    write_shape(folder / name, name);
    const io::Checkpoint parent(folder / name);
    const auto model = Llama::load(parent);
    const auto out = folder / (name + " saved");
    model::save_folder(model, model.default_routing(), parent, out, false,
                       *moe::distributed::solo_comm());
    const io::Checkpoint copy(out);
    check_same_tensors(copy, parent);
    CHECK(copy.config().at("architectures") == parent.config().at("architectures"));
    CHECK(copy.config().at("model_type") == parent.config().at("model_type"));
    CHECK(distance(run(Llama::load(copy), kIds, {7}), run(model, kIds, {7})) == 0);
  }
}

TEST_CASE("forwards with a KV cache give the logits of the whole sequence") {
  const TempDir folder;
  for (const char* name : {"llama", "qwen2_moe", "qwen3_moe", "qwen3"}) {
    CAPTURE(name);
    write_shape(folder / name, name);
    const auto model = Llama::load(io::Checkpoint(folder / name));
    const Ids ids{1, 5, 9, 11, 7, 2, 40};
    const Tensor whole = run(model, ids, {7});
    model::KvCache cache(model.config(), {.capacity = 1});  // grows
    int64_t first = 0;
    for (const int64_t count : {3, 1, 2, 1}) {  // one token and several after a past
      const Ids part(ids.begin() + first, ids.begin() + first + count);
      CHECK(distance(run_cached(model, part, cache), whole.narrow(0, first, count)) < kTolerance);
      first += count;
    }
  }
}

TEST_CASE("sequences with a shared prefix give the logits of each written out") {
  const TempDir dir;
  write_shape(dir / "model", GENERATE(as<std::string>(), "llama", "qwen3"));
  const Llama model = Llama::load(io::Checkpoint(dir / "model"));
  at::manual_seed(9);
  const Tensor ids = at::randint(64, {6 + 3 + 1 + 4 + 6 + 5 + 2}, at::kLong);
  // A question of 6 tokens with three answers, a sequence alone, a question of 5 with one answer.
  const model::Packed shared{ids, {6, 3, 1, 4, 6, 5, 2}, {-1, 0, 0, 0, -1, -1, 5}};
  const Tensor logits = model.head(model.forward(shared, {}).hidden);
  int64_t first = 0;
  std::vector<int64_t> starts;
  for (size_t i = 0; i < shared.lengths.size(); ++i) {
    starts.push_back(first);
    const int64_t length = shared.lengths[i], prefix = shared.prefix_index[i];
    const int64_t before = prefix < 0 ? 0 : shared.lengths[prefix];
    const Tensor start = prefix < 0 ? ids.narrow(0, 0, 0) : ids.narrow(0, starts[prefix], before);
    const Tensor spelt_out = at::cat({start, ids.narrow(0, first, length)});
    const Tensor expected = model.head(model.forward({spelt_out, {before + length}}, {}).hidden);
    // Equal products, but sums over keys in another order.
    CHECK(at::allclose(logits.narrow(0, first, length), expected.narrow(0, before, length), 1e-5,
                       1e-5));
    first += length;
  }
}

TEST_CASE("output_rows selects rows of the whole output, for every kind of last layer") {
  const TempDir dir;
  const std::string name = GENERATE(as<std::string>(), "llama", "qwen3", "mixtral", "capacity");
  write_shape(dir / name, name == "capacity" ? "llama" : name);
  if (name == "capacity") {
    write_mixture(dir / name, dir / "model", {.router = "top1", .router_std = 1.0});
  }
  Llama model = Llama::load(io::Checkpoint(dir / (name == "capacity" ? "model" : name)));
  model.set_compute({.precision = GENERATE(model::Precision::kF32, model::Precision::kBf16)});
  at::manual_seed(11);
  const at::NoGradGuard no_gradients;
  // A question of 6 tokens with two answers, a sequence of one token, one of 5.
  model::Packed tokens{
      at::randint(64, {6 + 3 + 2 + 1 + 5}, at::kLong), {6, 3, 2, 1, 5}, {-1, 0, 0, -1, -1}};
  const auto routing = model.default_routing();
  const Tensor whole = model.forward(tokens, routing).hidden;
  for (const std::vector<int64_t>& rows :
       {Ids{16}, {0}, {5, 6, 7, 9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}}) {
    tokens.output_rows = at::tensor(rows, at::kLong);
    const Tensor some = model.forward(tokens, routing).hidden;
    // Fewer rows may use another kernel: sums in another order.
    CHECK(some.sizes() == at::IntArrayRef({static_cast<int64_t>(rows.size()), whole.size(1)}));
    CHECK(at::allclose(some, whole.index_select(0, tokens.output_rows), 1e-5, 1e-5));
  }
}

TEST_CASE("a text as long as the sliding window is read, a longer one is refused") {
  const TempDir folder;
  write_shape(folder / "m", "mistral");
  const Tensor whole = run(Llama::load(io::Checkpoint(folder / "m")), {1, 5, 9, 11}, {4});
  auto config = Json::parse(read_file(folder / "m/config.json"));
  config["sliding_window"] = 4;
  std::ofstream(folder / "m/config.json") << config;
  const auto model = Llama::load(io::Checkpoint(folder / "m"));
  CHECK(distance(run(model, {1, 5, 9, 11}, {4}), whole) == 0);
  CHECK(distance(run(model, {7, 1, 5, 9, 11}, {1, 4}).narrow(0, 1, 4), whole) < kTolerance);
  const auto refusal = [&](const model::Packed& tokens) {
    return user_error_of([&] { model.forward(tokens, {}); });
  };
  const auto check_too_long = [&](const model::Packed& tokens) {
    CHECK_THAT(refusal(tokens), contains_text("5 tokens") && contains_text("4 of sliding_window"));
  };
  const Tensor ids = at::tensor({1, 5, 9, 11, 2}, at::kLong);
  check_too_long({ids, {5}});
  check_too_long({ids, {3, 2}, {-1, 0}});
  const at::NoGradGuard no_gradients;
  model::KvCache cache(model.config());
  CHECK(refusal({ids.narrow(0, 0, 3), {3}, {}, {&cache}}).empty());
  CHECK(refusal({ids.narrow(0, 3, 1), {1}, {}, {&cache}}).empty());
  check_too_long({ids.narrow(0, 4, 1), {1}, {}, {&cache}});
}

void check_reference(const std::filesystem::path& folder, const std::filesystem::path& file) {
  CAPTURE(folder);
  const auto reference = read_json(file);
  const auto model = Llama::load(io::Checkpoint(folder));
  const auto tokenizer = io::Tokenizer::load(folder, model.config().vocab_size);

  std::vector<int64_t> prompt = tokenizer.encode(reference.at("prompt").get<std::string>());
  prompt.insert(prompt.begin(), tokenizer.bos_id());
  REQUIRE(prompt == reference.at("prompt_ids_with_bos").get<std::vector<int64_t>>());
  const Tensor logits = run(model, prompt, {static_cast<int64_t>(prompt.size())})[-1];
  const auto expected = reference.at("last_position_logits").get<std::vector<double>>();
  CHECK(distance(logits, at::tensor(expected, at::kDouble)) < 1e-4);

  model::GenerateSettings settings;
  const auto wanted = reference.at("greedy_256_from_bos_ids").get<std::vector<int64_t>>();
  settings.max_tokens = std::ssize(wanted) - 1;
  auto greedy = model::generate(model, model.default_routing(), {1}, settings);
  greedy.insert(greedy.begin(), 1);
  CHECK(greedy == wanted);
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

TEST_CASE("trained models have the ids, logits, text and losses of transformers") {
  for (const auto& [folder, file] : reference_models()) {
    check_reference(folder, file);
  }
}

TEST_CASE("router biases of a folder select experts in mapped, saved and cloned models") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense");
  write_mixture(dir / "dense", dir / "zero",
                {.router = "top1:cf=inf,gate=none,bias=0.01", .experts = 4, .router_std = 0.5});
  const io::Checkpoint zero(dir / "zero");
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
  for (const Tensor& bias : model.router_biases()) {
    Tensor(bias).copy_(at::tensor({0.0, 5.0, 0.0, 0.0}, at::kFloat));  // all go to expert 1
  }
  const auto routing = model.default_routing();
  const model::Packed tokens{at::arange(12, at::kLong) * 5 % 61, {12}};
  const auto expected = model.forward(tokens, routing);
  const at::NoGradGuard no_grad;
  for (const auto& values : route::read_counters(expected.counters)) {
    CHECK(values.tokens_per_expert == Ids{0, 12, 0, 0});
  }
  model::save_folder(model, routing, zero, dir / "biased", false, *moe::distributed::solo_comm());
  const io::Checkpoint biased(dir / "biased");
  const Llama loaded = Llama::load(biased);
  CHECK(loaded.default_routing().router == routing.router);
  const Llama mapped = Llama::load(biased, {}, at::kCPU, model::Storage::kStored);
  for (const Llama* each : {&loaded, &mapped}) {
    CHECK(at::allclose(each->forward(tokens, routing).hidden, expected.hidden, 1e-4, 1e-4));
  }
  CHECK(at::equal(loaded.clone().forward(tokens, routing).hidden,
                  loaded.forward(tokens, routing).hidden));
}
