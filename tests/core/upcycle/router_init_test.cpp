// Routers initialised from texts, against plain loops over hidden states that the dense model
// computes one text at a time.

#include "core/upcycle/router_init.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "core/base/random.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/core/upcycle/upcycled.h"
#include "tests/support/matchers.h"
#include "tests/support/places.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

using test::contains_text;
using test::TempDir;
using test::user_error_of;
using Row = std::vector<double>;
using Rows = std::vector<Row>;

// The quickstart's parent: two layers of width 32, and a tokenizer.
fs::path facts_model() { return test::source_folder() / "recipes/tiny/facts/model"; }

const std::vector<ExpertPrompts>& three_prompts() {
  static const std::vector<ExpertPrompts> prompts = {
      {{"Where does Bado live?\n", "Name the town of Kimo.\n"}, {}},
      {{"What does Bado eat?\n"}, {"Where does Bado live?\n", "How does Teso earn money?\n"}},
      {{"What is the job of Lavi?\n", "What does Lavi work as?\n"}, {"What does Bado eat?\n"}}};
  return prompts;
}

void write_two_prompts(const fs::path& file) {
  test::write_file(file, R"({"0": ["Where does Bado live?"],
    "1": {"positive": ["What does Bado eat?"], "negative": ["Where does Bado live?"]}})");
}

UpcycleSettings settings_of(int64_t experts) {
  UpcycleSettings settings = test::upcycle_settings({}, "top2:cf=inf", experts);
  settings.layers = "all";
  return settings;
}

ModelConfig child_of(const io::Checkpoint& base, const UpcycleSettings& settings) {
  return plan_upcycle(base, settings).child;
}

// Returns the hidden states of one sequence: [layer][token][D].
std::vector<Rows> states_of(const Llama& model, const std::vector<int64_t>& ids) {
  const at::NoGradGuard no_gradients;
  std::vector<Rows> states(static_cast<size_t>(model.config().layers));
  const Packed tokens{at::tensor(ids, at::kLong), {static_cast<int64_t>(ids.size())}};
  model.forward(tokens, model.default_routing(), [&](int64_t layer, const at::Tensor& input) {
    for (int64_t token = 0; token < input.size(0); ++token) {
      Row row;
      for (int64_t column = 0; column < input.size(1); ++column) {
        row.push_back(input[token][column].item<double>());
      }
      states[static_cast<size_t>(layer)].push_back(std::move(row));
    }
  });
  return states;
}

double norm_of(const Row& row) {
  double squares = 0;
  for (const double value : row) {
    squares += value * value;
  }
  return std::sqrt(squares);
}

Row mean_of(const Rows& rows) {
  Row mean(rows[0].size(), 0.0);
  for (const auto& row : rows) {
    for (size_t column = 0; column < row.size(); ++column) {
      mean[column] += row[column] / static_cast<double>(rows.size());
    }
  }
  return mean;
}

// Returns the hidden states of texts, [layer][token][D], without those of BOS.
std::vector<Rows> states_of_texts(const Llama& model, const io::Tokenizer& tokenizer,
                                  const std::vector<std::string>& texts) {
  std::vector<Rows> all(static_cast<size_t>(model.config().layers));
  for (const auto& text : texts) {
    std::vector<int64_t> ids = tokenizer.encode(text);
    ids.insert(ids.begin(), tokenizer.bos_id());
    const auto states = states_of(model, ids);
    for (size_t layer = 0; layer < all.size(); ++layer) {
      all[layer].insert(all[layer].end(), states[layer].begin() + 1, states[layer].end());
    }
  }
  return all;
}

// Returns a row of the router.
Row row_of(const RouterInitStats& layer, size_t expert, size_t width) {
  const auto begin = layer.rows.begin() + static_cast<int64_t>(expert * width);
  return {begin, begin + static_cast<int64_t>(width)};
}

// Checks the statistics of `layer` against loops over tokens and experts.
void check_first_routing(const RouterInitStats& layer, const Rows& states, double entropy) {
  const size_t width = states[0].size(), experts = layer.rows.size() / width;
  double nats = 0, largest = 0;
  Row first(experts, 0.0);
  for (const auto& state : states) {
    Row parts;
    for (size_t expert = 0; expert < experts; ++expert) {
      const Row row = row_of(layer, expert, width);
      parts.push_back(0);
      for (size_t column = 0; column < width; ++column) {
        parts.back() += state[column] * row[column];
      }
    }
    const double highest = *std::max_element(parts.begin(), parts.end());
    for (double& part : parts) {
      part = std::exp(part - highest);
    }
    double total = 0;
    for (const double part : parts) {
      total += part;
    }
    size_t best = 0;
    for (size_t expert = 0; expert < experts; ++expert) {
      const double p = parts[expert] / total;
      nats -= p > 0 ? p * std::log(p) : 0;
      best = parts[expert] > parts[best] ? expert : best;
    }
    largest += parts[best] / total;
    first[best] += 1;
  }
  const auto tokens = static_cast<double>(states.size());
  // Logits of some hundreds are off by some 1e-4 in f32 (6e-8 of them, a sum of 32 products), and
  // so is a probability at most.
  constexpr double kMargin = 2e-4;
  CHECK(nats / tokens / std::log(static_cast<double>(experts)) == Approx(entropy).margin(kMargin));
  CHECK(layer.entropy == Approx(entropy).margin(kMargin));
  CHECK(layer.largest_probability == Approx(largest / tokens).margin(kMargin));
  for (size_t expert = 0; expert < experts; ++expert) {
    CHECK(layer.first_choices[expert] == Approx(first[expert] / tokens));
  }
}

TEST_CASE("a row is the scaled difference of the mean states of its positive and negative texts",
          "[model][upcycle]") {
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
  for (const double entropy : {0.2, 0.7, 0.95}) {
    CAPTURE(entropy);
    const RouterInit start = init_routers(
        base, child, {RouterInitSettings::Kind::kPrompts, "prompts.json", entropy}, text);
    REQUIRE(start.layers.size() == 2);
    CHECK(start.tokens == static_cast<int64_t>(measured[0].size()));
    for (size_t layer = 0; layer < 2; ++layer) {
      REQUIRE(start.layers[layer].layer == static_cast<int64_t>(layer));
      check_first_routing(start.layers[layer], measured[layer], entropy);
      for (size_t expert = 0; expert < 3; ++expert) {
        const auto& [own, others] = three_prompts()[expert];
        Row expected = mean_of(states_of_texts(model, tokenizer, own)[layer]);
        if (!others.empty()) {
          const Row less = mean_of(states_of_texts(model, tokenizer, others)[layer]);
          for (size_t column = 0; column < expected.size(); ++column) {
            expected[column] -= less[column];
          }
        }
        const Row row = row_of(start.layers[layer], expert, 32);
        CHECK(norm_of(row) == Approx(start.layers[layer].row_norm).epsilon(1e-5));
        for (size_t column = 0; column < 32; ++column) {
          // Texts packed into one forward are summed in another order: 1e-5 of a unit row.
          CHECK(row[column] / norm_of(row) ==
                Approx(expected[column] / norm_of(expected)).margin(1e-5));
        }
      }
    }
  }
}

TEST_CASE("long texts are cut at the context length, each piece with its BOS", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense", {.max_positions = 16});
  const io::Checkpoint base(folder / "dense");
  const Llama model = Llama::load(base);
  RouterText text;
  text.name = "a text";
  text.bos = 1;
  std::vector<Rows> expected(3);
  for (const int64_t length : {33, 15, 1}) {  // behind the BOS
    text.sequences.push_back({1});
    std::vector<int64_t> piece = {1};
    for (int64_t index = 0; index < length; ++index) {
      text.sequences.back().push_back((index * 29 + length) % 62 + 2);
      piece.push_back(text.sequences.back().back());
      if (piece.size() == 16 || index + 1 == length) {
        const auto states = states_of(model, piece);
        for (size_t layer = 0; layer < 3; ++layer) {
          expected[layer].insert(expected[layer].end(), states[layer].begin() + 1,
                                 states[layer].end());
        }
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
    // The rows are those that would be drawn, one factor for all.
    std::vector<float> drawn(4 * 16);
    Random(5, fmt::format("model.layers.{}.mlp.gate.weight", layer)).fill_normal(drawn, 0.02);
    const double factor = static_cast<double>(start.layers[layer].rows[0]) / drawn[0];
    for (size_t index = 0; index < drawn.size(); ++index) {
      CHECK(start.layers[layer].rows[index] == Approx(factor * drawn[index]).epsilon(1e-5));
    }
  }
}

TEST_CASE("the rows are clusters of a text's states, of one norm", "[model][upcycle]") {
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
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
  std::vector<Rows> states(3);
  for (const auto& ids : text.sequences) {
    const auto own = states_of(model, ids);
    for (size_t layer = 0; layer < 3; ++layer) {
      states[layer].insert(states[layer].end(), own[layer].begin(), own[layer].end());
    }
  }
  for (size_t layer = 0; layer < 3; ++layer) {
    check_first_routing(start.layers[layer], states[layer], kDefaultEntropy);
    for (size_t expert = 0; expert < 4; ++expert) {
      CHECK(norm_of(row_of(start.layers[layer], expert, 16)) ==
            Approx(start.layers[layer].row_norm).epsilon(1e-5));
      CHECK(start.layers[layer].first_choices[expert] > 0);
    }
  }
  text.sequences = {{3, 4, 5}};
  CHECK_THAT(user_error_of([&] { init_routers(base, child, cluster, text); }),
             contains_text("a text: 3 tokens are fewer than the 4 experts"));
  text.sequences = {{3}, {3}, {3}, {3}, {9}, {9}};
  CHECK_THAT(user_error_of([&] { init_routers(base, child, cluster, text); }),
             contains_text("only 2 different states in layer 0, 4 experts"));
}

TEST_CASE("a folder has the measured rows, one for all slices of a feed-forward",
          "[model][upcycle]") {
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
    for (const int64_t granularity : {1, 4}) {
      const RouterInitSettings& init = way.first;
      INFO(to_string(init) << " G " << granularity);
      UpcycleSettings settings = settings_of(2);
      settings.router_init = init;
      settings.out = folder / "out";
      settings.force = true;
      const RouterInit whole = init_routers(base, child_of(base, settings), init, *way.second);
      settings.granularity = granularity;
      const ModelConfig child = child_of(base, settings);
      const test::Upcycled pair(facts_model(), settings, {.init_routers = [&] {
                                  return init_routers(base, child, init, *way.second);
                                }});
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
            test::floats(pair.child, fmt::format("model.layers.{}.mlp.gate.weight", layer.layer));
        const size_t width = layer.rows.size() / 2, slices = static_cast<size_t>(granularity);
        REQUIRE(rows.size() == 2 * slices * width);
        for (size_t i = 0; i < rows.size(); ++i) {
          CHECK(rows[i] == layer.rows[i / (slices * width) * width + i % width]);
        }
      }
    }
  }
}

TEST_CASE("an entropy that no scale reaches is refused", "[model][upcycle]") {
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

TEST_CASE("prompts name experts by number or by folder", "[model][upcycle]") {
  const TempDir folder;
  const std::string file = (folder / "prompts.json").string();
  const std::vector<ExpertParent> parents = {{"runs/town/", 1}, {"runs/food", 1}, {"job", 2}};
  const auto read = [&](const std::string& json) {
    test::write_file(file, json);
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
           {R"({"-1": ["a"]})", "expert '-1'"},
           {R"({"job": ["a"]})", "'job' is experts 2, 3"},
           {R"({"0": ["a"], "town": ["a"]})", "expert 0 twice"},
           {R"({"0": ["a"], "1": ["a"], "3": ["a"]})", "nothing of expert 2"},
           {R"({"0": []})", "expert '0': has no text"},
           {R"({"0": {"negative": ["a"]}})", "expert '0': has no text"},
           {R"({"0": "a"})", "expert '0': must be a list of texts"},
           {R"({"0": {"positive": [1]}})", "expert '0', 'positive': must be a list of texts"},
           {R"({"0": {"postive": ["a"]}})", "expert '0': 'postive'"},
           {"{\"0\": [", ""},
           {R"({"0": ["a"], "0": ["b"]})", ""}}) {
    INFO(json);
    const std::string text = json;
    CHECK_THAT(user_error_of([&] { read(text); }),
               contains_text(file + ": ") && contains_text(fact));
  }
}

TEST_CASE("empty texts, too many tokens and a missing tokenizer are refused", "[model][upcycle]") {
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
  test::write_tiny_checkpoint(folder / "dense");
  CHECK_THAT(user_error_of([&] {
               tokenize_prompts(io::Checkpoint(folder / "dense"), {ExpertPrompts{{"a"}, {}}},
                                "prompts.json");
             }),
             contains_text((folder / "dense").string() + ": no tokenizer"));
}

TEST_CASE("--router-init and --router-entropy are checked", "[model][upcycle]") {
  CHECK(to_string(parse_router_init("random")) == "random");
  CHECK(to_string(parse_router_init("prompts:a:b.json")) == "prompts:a:b.json");
  CHECK(parse_router_init("cluster:t.txt").kind == RouterInitSettings::Kind::kCluster);
  for (const char* text : {"", "prompts", "prompts:", "kmeans:t.txt", "random:1"}) {
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
  for (const double entropy : {0.0, 1.0, -1.0, 1.5, std::nan("")}) {
    CHECK_THAT(refused("random", entropy, "top1", 4),
               contains_text(fmt::format("--router-entropy {}: must lie between 0", entropy)));
  }
  CHECK_THAT(refused("cluster:t.txt", {}, "relu:k=1", 4),
             contains_text("--router-init cluster:t.txt: the logits of relu:k=1"));
  CHECK_THAT(refused("random", 0.5, "top1", 1), contains_text("--router-entropy 0.5"));
}

TEST_CASE("layers are described, with router_warnings on saturated, uniform and idle ones",
          "[model][upcycle]") {
  RouterInit start{"a text", 50, {}};
  start.layers = {{0, {}, 1, 0.7, 0.5, {0.25, 0.5, 0.25}},
                  {1, {}, 1, 0.01, 0.99, {0.5, 0.25, 0.25}},
                  {2, {}, 1, 0.99, 0.35, {0.0, 1.0, 0.0}}};
  const std::string line = describe(start.layers[0]);
  CHECK_THAT(line, contains_text("layer 0: entropy 0.700 of ln 3, largest probability 0.500"));
  CHECK_THAT(line, contains_text("25.0 % (expert 0) to 50.0 % (expert 1)"));
  const auto sentences = router_warnings(start);
  REQUIRE(sentences.size() == 3);
  CHECK_THAT(sentences[0], contains_text("layer 1: the router starts saturated"));
  CHECK_THAT(sentences[1], contains_text("layer 2: the router starts uniform"));
  CHECK_THAT(sentences[2], contains_text("layer 2: 2 of 3 experts") && contains_text(": 0, 2;"));
}

}  // namespace
}  // namespace moe::model
