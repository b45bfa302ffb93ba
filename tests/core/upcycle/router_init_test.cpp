// Routers initialised from texts, against plain loops over hidden states that the dense model
// computes one text at a time; and balanced clusters and spherical k-means.

#include "core/upcycle/router_init.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "core/base/random.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/places.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

using at::Tensor;
using namespace moe::test;

// The quickstart's parent: two layers of width 32, and a tokenizer.
fs::path facts_model() { return source_folder() / "recipes/tiny/facts/model"; }

const std::vector<ExpertPrompts>& three_prompts() {
  static const std::vector<ExpertPrompts> prompts = {
      {{"Where does Bado live?\n", "Name the town of Kimo.\n"}, {}},
      {{"What does Bado eat?\n"}, {"Where does Bado live?\n", "How does Teso earn money?\n"}},
      {{"What is the job of Lavi?\n", "What does Lavi work as?\n"}, {"What does Bado eat?\n"}}};
  return prompts;
}

void write_two_prompts(const fs::path& file) {
  write_file(file, R"({"0": ["Where does Bado live?"],
    "1": {"positive": ["What does Bado eat?"], "negative": ["Where does Bado live?"]}})");
}

UpcycleSettings settings_of(int64_t experts) {
  UpcycleSettings settings = upcycle_settings({}, "top2:cf=inf", experts);
  settings.layers = "all";
  return settings;
}

ModelConfig child_of(const io::Checkpoint& base, const UpcycleSettings& settings) {
  return plan_upcycle(base, settings).child;
}

// Returns the hidden states of one sequence without its first `skipped` tokens: [T, D] f64 a layer.
std::vector<Tensor> states_of(const Llama& model, const std::vector<int64_t>& ids,
                              int64_t skipped) {
  const at::NoGradGuard no_gradients;
  std::vector<Tensor> states;
  const Packed tokens{at::tensor(ids, at::kLong), {static_cast<int64_t>(ids.size())}};
  model.forward(tokens, model.default_routing(), [&](int64_t /*layer*/, const Tensor& input) {
    states.push_back(input.slice(0, skipped).to(at::kDouble));
  });
  return states;
}

void append(std::vector<Tensor>& all, const std::vector<Tensor>& states) {
  all.resize(states.size());
  for (size_t layer = 0; layer < states.size(); ++layer) {
    all[layer] = all[layer].defined() ? at::cat({all[layer], states[layer]}) : states[layer];
  }
}

// Returns the hidden states of texts, without those of BOS.
std::vector<Tensor> states_of_texts(const Llama& model, const io::Tokenizer& tokenizer,
                                    const std::vector<std::string>& texts) {
  std::vector<Tensor> all;
  for (const auto& text : texts) {
    std::vector<int64_t> ids = tokenizer.encode(text);
    ids.insert(ids.begin(), tokenizer.bos_id());
    append(all, states_of(model, ids, 1));
  }
  return all;
}

// Returns the rows of the router, [E, D] f64.
Tensor rows_of(const RouterInitStats& layer, int64_t width) {
  return at::tensor(layer.rows, at::kFloat).to(at::kDouble).view({-1, width});
}

// Checks the statistics of `layer` against those of `states`.
void check_first_routing(const RouterInitStats& layer, const Tensor& states, double entropy) {
  const Tensor rows = rows_of(layer, states.size(1));
  const int64_t experts = rows.size(0);
  const Tensor log_p = states.mm(rows.t()).log_softmax(1);
  const double nats = -(log_p.exp() * log_p).sum(1).mean().item<double>();
  const auto [largest, best] = log_p.exp().max(1);
  // Logits of some hundreds are off by some 1e-4 in f32 (6e-8 of them, a sum of 32 products), and
  // so is a probability at most.
  constexpr double kMargin = 2e-4;
  CHECK(nats / std::log(static_cast<double>(experts)) == Approx(entropy).margin(kMargin));
  CHECK(layer.entropy == Approx(entropy).margin(kMargin));
  CHECK(layer.largest_probability == Approx(largest.mean().item<double>()).margin(kMargin));
  for (int64_t expert = 0; expert < experts; ++expert) {
    CHECK(layer.first_choices[static_cast<size_t>(expert)] ==
          Approx((best == expert).to(at::kDouble).mean().item<double>()));
  }
}

TEST_CASE("a row is the scaled difference of the mean states of its positive and negative texts") {
  const io::Checkpoint base(facts_model());
  const Llama model = Llama::load(base);
  const auto tokenizer = io::Tokenizer::load(facts_model(), model.config().vocab_size);
  const ModelConfig child = child_of(base, settings_of(3));
  const RouterText text = tokenize_prompts(base, three_prompts(), "prompts.json");
  CHECK(text.sequences.size() == 6);  // each different text once
  std::vector<std::string> positive;
  for (const auto& prompts : three_prompts()) {
    positive.insert(positive.end(), prompts.positive.begin(), prompts.positive.end());
  }
  const auto measured = states_of_texts(model, tokenizer, positive);
  for (const double entropy : {0.2, 0.95}) {
    CAPTURE(entropy);
    const RouterInit start = init_routers(
        base, child, {RouterInitSettings::Kind::kPrompts, "prompts.json", entropy}, text);
    REQUIRE(start.layers.size() == 2);
    CHECK(start.tokens == measured[0].size(0));
    for (size_t layer = 0; layer < 2; ++layer) {
      REQUIRE(start.layers[layer].layer == static_cast<int64_t>(layer));
      check_first_routing(start.layers[layer], measured[layer], entropy);
      const Tensor rows = rows_of(start.layers[layer], 32);
      for (size_t expert = 0; expert < 3; ++expert) {
        const auto& [own, others] = three_prompts()[expert];
        Tensor expected = states_of_texts(model, tokenizer, own)[layer].mean(0);
        if (!others.empty()) {
          expected = expected - states_of_texts(model, tokenizer, others)[layer].mean(0);
        }
        const Tensor row = rows[static_cast<int64_t>(expert)];
        CHECK(row.norm().item<double>() == Approx(start.layers[layer].row_norm).epsilon(1e-5));
        // Texts packed into one forward are summed in another order: 1e-5 of a unit row.
        CHECK((row / row.norm() - expected / expected.norm()).abs().max().item<double>() < 1e-5);
      }
    }
  }
}

TEST_CASE("long texts are cut at the context length, each piece with its BOS") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense", {.max_positions = 16});
  const io::Checkpoint base(folder / "dense");
  const Llama model = Llama::load(base);
  RouterText text;
  text.name = "a text";
  text.bos = 1;
  std::vector<Tensor> expected;
  for (const int64_t length : {33, 15, 1}) {  // after the BOS
    text.sequences.push_back({1});
    std::vector<int64_t> piece = {1};
    for (int64_t index = 0; index < length; ++index) {
      text.sequences.back().push_back((index * 29 + length) % 62 + 2);
      piece.push_back(text.sequences.back().back());
      if (piece.size() == 16 || index + 1 == length) {
        append(expected, states_of(model, piece, 1));
        piece = {1};
      }
    }
  }
  UpcycleSettings settings = settings_of(4);
  settings.seed = 5;
  const ModelConfig child = child_of(base, settings);
  const RouterInitSettings random{RouterInitSettings::Kind::kRandom, {}, 0.5};
  const RouterInit start = init_routers(base, child, random, text);
  CHECK(start.tokens == 49);
  REQUIRE(start.layers.size() == 3);
  for (size_t layer = 0; layer < 3; ++layer) {
    check_first_routing(start.layers[layer], expected[layer], 0.5);
    // The rows are the random rows times one common factor.
    std::vector<float> drawn(4 * 16);
    Random(5, fmt::format("model.layers.{}.mlp.gate.weight", layer)).fill_normal(drawn, 0.02);
    const double factor = static_cast<double>(start.layers[layer].rows[0]) / drawn[0];
    for (size_t index = 0; index < drawn.size(); ++index) {
      CHECK(start.layers[layer].rows[index] == Approx(factor * drawn[index]).epsilon(1e-5));
    }
  }
}

TEST_CASE("the rows are clusters of a text's states, of one norm") {
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  const io::Checkpoint base(folder / "dense");
  RouterText text;
  text.name = "a text";
  for (int64_t index = 0; index < 90; ++index) {
    if (index % 30 == 0) {
      text.sequences.emplace_back();
    }
    text.sequences.back().push_back((index * 31 + 7) % 64);
  }
  const ModelConfig child = child_of(base, settings_of(4));
  const RouterInitSettings cluster{RouterInitSettings::Kind::kCluster, "text.txt", {}};
  const RouterInit start = init_routers(base, child, cluster, text);
  const Llama model = Llama::load(base);
  std::vector<Tensor> states;
  for (const auto& ids : text.sequences) {
    append(states, states_of(model, ids, 0));
  }
  for (size_t layer = 0; layer < 3; ++layer) {
    check_first_routing(start.layers[layer], states[layer], kDefaultEntropy);
    const Tensor norms = rows_of(start.layers[layer], 16).norm(2, 1);
    CHECK(at::allclose(norms, at::full({4}, start.layers[layer].row_norm, at::kDouble), 1e-5));
    CHECK(at::tensor(start.layers[layer].first_choices).min().item<double>() > 0);
  }
  text.sequences = {{3, 4, 5}};
  CHECK_THAT(user_error_of([&] { init_routers(base, child, cluster, text); }),
             contains_text("a text: 3 tokens are fewer than the 4 experts"));
  text.sequences = {{3}, {3}, {3}, {3}, {9}, {9}};
  CHECK_THAT(user_error_of([&] { init_routers(base, child, cluster, text); }),
             contains_text("only 2 different states in layer 0, 4 experts"));
}

TEST_CASE("a folder has the measured rows, one for all slices of a feed-forward") {
  const TempDir folder;
  const io::Checkpoint base(facts_model());
  const std::string file = (folder / "prompts.json").string();
  write_two_prompts(file);
  const RouterText prompts = tokenize_prompts(base, read_prompts(file, 2, {}), "prompts.json");
  RouterText plain = prompts;
  plain.experts.clear();
  const std::vector<std::pair<RouterInitSettings, const RouterText*>> ways = {
      {parse_router_init("prompts:" + file), &prompts},
      {parse_router_init("cluster:" + file), &plain},
      {{RouterInitSettings::Kind::kRandom, {}, 0.6}, &plain}};
  for (const auto& way : ways) {
    const RouterInitSettings& init = way.first;
    const RouterText& text = *way.second;
    INFO(to_string(init));
    UpcycleSettings settings = settings_of(2);
    settings.router_init = init;
    settings.out = folder / "out";
    settings.force = true;
    const RouterInit whole = init_routers(base, child_of(base, settings), init, text);
    settings.granularity = 4;
    const ModelConfig child = child_of(base, settings);
    const Upcycled pair(facts_model(), settings,
                        {.init_routers = [&] { return init_routers(base, child, init, text); }});
    const Json report = Json(pair.report)["router_init"];
    CHECK(read_json(folder / "out/upcycle.json")["router_init"] == report);
    CHECK(report["layers"] == Json(to_json(whole)["layers"]));
    CHECK(report["tokens"] == whole.tokens);
    if (init.kind == RouterInitSettings::Kind::kPrompts) {
      CHECK(report["kind"] == "prompts");
      CHECK(report["file_sha256"].get<std::string>().size() == 64);
      CHECK(report["entropy"] == kDefaultEntropy);
      CHECK(report["layers"][1]["entropy"].get<double>() == Approx(kDefaultEntropy).margin(2e-4));
      CHECK(report["layers"][1]["first_choices"].size() == 2);
    }
    for (const auto& layer : whole.layers) {
      const auto rows =
          floats(pair.child, fmt::format("model.layers.{}.mlp.gate.weight", layer.layer));
      const size_t width = layer.rows.size() / 2, slices = 4;
      REQUIRE(rows.size() == 2 * slices * width);
      for (size_t i = 0; i < rows.size(); ++i) {
        CHECK(rows[i] == layer.rows[i / (slices * width) * width + i % width]);
      }
    }
  }
}

TEST_CASE("an entropy that no scale reaches is refused") {
  const io::Checkpoint base(facts_model());
  const ModelConfig child = child_of(base, settings_of(2));
  const RouterInitSettings prompts{RouterInitSettings::Kind::kPrompts, "prompts.json", 0.5};
  const auto refusal = [&](const std::vector<ExpertPrompts>& texts) {
    return user_error_of(
        [&] { init_routers(base, child, prompts, tokenize_prompts(base, texts, "prompts.json")); });
  };
  const ExpertPrompts eat{{"What does Bado eat?"}, {}}, nothing{eat.positive, eat.positive};
  CHECK_THAT(refusal({eat, eat}),
             contains_text("--router-entropy 0.5: in layer 0") && contains_text("prompts.json"));
  CHECK_THAT(refusal({eat, nothing}),
             contains_text("prompts.json: the negative texts of expert 1"));
  UpcycleSettings zero = settings_of(2);
  zero.router_std = 0;
  RouterText text;
  text.name = "a text";
  text.sequences = {{3, 4, 5}};
  CHECK_THAT(user_error_of([&] {
               init_routers(base, child_of(base, zero),
                            {RouterInitSettings::Kind::kRandom, {}, 0.5}, text);
             }),
             contains_text("--router-entropy 0.5: in layer 0"));
}

TEST_CASE("prompts name experts by number or by folder") {
  const TempDir folder;
  const std::string file = (folder / "prompts.json").string();
  const std::vector<ExpertParent> parents = {{"runs/town/", 1}, {"runs/food", 1}, {"job", 2}};
  const auto read = [&](const std::string& json) {
    write_file(file, json);
    return read_prompts(file, 4, parents);
  };
  const auto prompts = read(
      R"({"town": ["a"], "runs/food": {"positive": ["b", "c"], "negative": ["a"]}, "2": ["d"],
          "3": {"positive": ["e"]}})");
  REQUIRE(prompts.size() == 4);
  CHECK(prompts[0].positive == std::vector<std::string>{"a"});
  CHECK(prompts[1].positive == std::vector<std::string>{"b", "c"});
  CHECK(prompts[1].negative == std::vector<std::string>{"a"});
  CHECK(prompts[3].positive == std::vector<std::string>{"e"});
  for (const auto& [json, fact] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "must be an object"},
           {R"({"4": ["a"]})", "expert '4', there are experts 0 to 3"},
           {R"({"job": ["a"]})", "'job' is experts 2, 3"},
           {R"({"0": ["a"], "town": ["a"]})", "expert 0 twice"},
           {R"({"0": ["a"], "1": ["a"], "3": ["a"]})", "no texts for expert 2"},
           {R"({"0": {"negative": ["a"]}})", "expert '0': has no positive text"},
           {R"({"0": "a"})", "expert '0': must be a list of texts"},
           {R"({"0": {"postive": ["a"]}})", "expert '0': 'postive'"},
           {"{\"0\": [", ""},
           {R"({"0": ["a"], "0": ["b"]})", ""}}) {
    INFO(json);
    const std::string text = json;
    CHECK_THAT(user_error_of([&] { read(text); }),
               contains_text(file + ": ") && contains_text(fact));
  }
}

TEST_CASE("empty texts, too many tokens and a missing tokenizer are refused") {
  const io::Checkpoint base(facts_model());
  const auto refused = [&](const std::string& text) {
    return user_error_of([&] {
      tokenize_prompts(base, {ExpertPrompts{{text}, {}}}, "prompts.json");
    });
  };
  CHECK_THAT(refused(""), contains_text("prompts.json: one of its texts is empty"));
  std::string many;
  for (int word = 0; word < 9000; ++word) {
    many += "does ";
  }
  CHECK_THAT(refused(many), contains_text("at most 8192"));
  const TempDir folder;
  write_tiny_checkpoint(folder / "dense");
  CHECK_THAT(user_error_of([&] {
               tokenize_prompts(io::Checkpoint(folder / "dense"), {ExpertPrompts{{"a"}, {}}},
                                "prompts.json");
             }),
             contains_text((folder / "dense").string() + ": no tokenizer"));
}

TEST_CASE("--router-init and --router-entropy are checked") {
  CHECK(to_string(parse_router_init("random")) == "random");
  CHECK(to_string(parse_router_init("prompts:a:b.json")) == "prompts:a:b.json");
  CHECK(parse_router_init("cluster:t.txt").kind == RouterInitSettings::Kind::kCluster);
  for (const char* text : {"", "prompts:", "kmeans:t.txt", "random:1"}) {
    CHECK_THAT(user_error_of([&] { parse_router_init(text); }),
               contains_text(fmt::format("--router-init '{}': is none of random", text)));
  }
  const auto refused = [](const char* init, std::optional<double> entropy, const char* router,
                          int64_t experts) {
    RouterInitSettings parsed = parse_router_init(init);
    parsed.entropy = entropy;
    return user_error_of([&] { check_router_init(parsed, route::parse_router(router), experts); });
  };
  CHECK(refused("random", {}, "relu:k=1", 1).empty());
  CHECK(refused("cluster:t.txt", 0.5, "topp:0.4", 2).empty());
  for (const double entropy : {0.0, 1.0, std::nan("")}) {
    CHECK_THAT(refused("random", entropy, "top1", 4),
               contains_text(fmt::format("--router-entropy {}: must be between 0", entropy)));
  }
  CHECK_THAT(refused("cluster:t.txt", {}, "relu:k=1", 4),
             contains_text("--router-init cluster:t.txt: relu:k=1 has no softmax"));
  CHECK_THAT(refused("random", 0.5, "top1", 1), contains_text("--router-entropy 0.5"));
}

at::Tensor random_points(int64_t points, int64_t width, uint64_t seed) {
  at::Tensor out = at::empty({points, width}, at::kFloat);
  Random random(seed, "points");
  random.fill_normal({out.data_ptr<float>(), static_cast<size_t>(out.numel())}, 1.0);
  return out;
}

// Joins the most similar pair of point and non-full cluster until all points have a cluster.
std::vector<int64_t> clusters_by_loops(at::Tensor similarities) {
  const int64_t points = similarities.size(0), clusters = similarities.size(1);
  std::vector<int64_t> cluster_of(points, -1), sizes(clusters, 0);
  similarities = similarities.clone();
  for (int64_t joined = 0; joined < points; ++joined) {
    const auto larger = std::count_if(sizes.begin(), sizes.end(),
                                      [&](int64_t size) { return size > points / clusters; });
    for (int64_t cluster = 0; cluster < clusters; ++cluster) {
      const bool may_grow = larger < points % clusters && sizes[cluster] == points / clusters;
      if (sizes[cluster] >= points / clusters && !may_grow) {
        similarities.select(1, cluster).fill_(-INFINITY);
      }
    }
    const auto best = similarities.argmax().item<int64_t>();  // the first of equals
    cluster_of[best / clusters] = best % clusters;
    ++sizes[best % clusters];
    similarities[best / clusters].fill_(-INFINITY);
  }
  return cluster_of;
}

TEST_CASE("balanced clusters equal those of plain loops, and their sizes differ by at most one") {
  for (const auto& [points, clusters] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 1}, {5, 4}, {4, 4}, {31, 2}, {32, 8}, {33, 8}, {39, 8}}) {
    for (const bool has_ties : {false, true}) {
      CAPTURE(points, clusters, has_ties);
      at::Tensor similarities = random_points(points, clusters, 7);
      similarities = has_ties ? similarities.round() : similarities;
      const auto cluster_of = balanced_clusters(similarities);
      CHECK(cluster_of == clusters_by_loops(similarities));
      for (int64_t cluster = 0; cluster < clusters; ++cluster) {
        const auto size = std::count(cluster_of.begin(), cluster_of.end(), cluster);
        CHECK(size >= points / clusters);
        CHECK(size <= (points + clusters - 1) / clusters);
      }
    }
  }
}

TEST_CASE("balanced centroids are the directions of the means of their clusters") {
  const at::Tensor points = random_points(61, 6, 3);
  const at::Tensor units = points / points.norm(2, 1, true);
  for (const uint64_t seed : {1, 2, 3}) {
    const at::Tensor centroids = balanced_centroids(points, 4, seed, "a layer");
    REQUIRE(centroids.sizes() == at::IntArrayRef({4, 6}));
    const at::Tensor cluster_of = at::tensor(balanced_clusters(units.mm(centroids.t())));
    for (int64_t cluster = 0; cluster < 4; ++cluster) {
      const at::Tensor sum = units.index_select(0, at::nonzero(cluster_of == cluster).view({-1}))
                                 .to(at::kDouble)
                                 .sum(0);
      // Means of some 15 unit vectors in f32 against f64: a few epsilons (6e-8) of 1.
      CHECK((centroids[cluster] - sum / sum.norm()).abs().max().item<double>() < 2e-6);
    }
    CHECK(at::equal(centroids, balanced_centroids(points, 4, seed, "a layer")));
  }
  CHECK_FALSE(at::equal(balanced_centroids(points, 4, 1, "a layer"),
                        balanced_centroids(points, 4, 1, "another layer")));
}

TEST_CASE("fewer different points than clusters give fewer centroids") {
  const at::Tensor points = random_points(2, 5, 1).repeat({4, 1});
  CHECK(balanced_centroids(points, 3, 1, "a layer").size(0) == 2);
  CHECK(balanced_centroids(points, 2, 1, "a layer").size(0) == 2);
}

}  // namespace
}  // namespace moe::model
