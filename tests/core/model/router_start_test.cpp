// Routers that are measured, against plain loops over states that the forward of the dense folder
// gives one text at a time.

#include "core/model/convert/router_start.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "core/base/random.h"
#include "core/model/convert/upcycle.h"
#include "core/model/llama/llama.h"
#include "core/route/router.h"
#include "core/tokenizer/tokenizer.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/stored_numbers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/support/user_error.h"

namespace moe::model {
namespace {

namespace fs = std::filesystem;

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

UpcycleSettings settings_of(int64_t experts) {
  UpcycleSettings settings;
  settings.experts = experts;
  settings.layers = "all";
  settings.router = route::parse_router("top2:cf=inf");
  return settings;
}

// The mixture's config, as upcycling of `base` makes it.
ModelConfig child_of(const io::Checkpoint& base, const UpcycleSettings& settings) {
  return plan_upcycle(base, settings).child;
}

// States of one sequence alone, of all its tokens: [layer][token][D].
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

// What texts make of the model, layer by layer: all tokens but BOS.
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

// A row of the router as LayerStart has it.
Row row_of(const LayerStart& layer, size_t expert, size_t width) {
  const auto begin = layer.rows.begin() + static_cast<int64_t>(expert * width);
  return {begin, begin + static_cast<int64_t>(width)};
}

// What the first routing of `states` by the rows of `layer` is, in loops over tokens and experts.
void check_first_routing(const LayerStart& layer, const Rows& states, double entropy) {
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

TEST_CASE("a row is the mean state of its texts less that of its negative ones, scaled",
          "[model][upcycle]") {
  const io::Checkpoint base(facts_model());
  const Llama model = Llama::load(base);
  const auto tokenizer = io::Tokenizer::load(facts_model(), model.config().vocab_size);
  const ModelConfig child = child_of(base, settings_of(3));
  const RouterText text = text_of_prompts(base, three_prompts(), "prompts.json");
  CHECK(text.sequences.size() == 6);  // each different text once
  std::vector<std::string> positive;
  for (const auto& prompts : three_prompts()) {
    positive.insert(positive.end(), prompts.positive.begin(), prompts.positive.end());
  }
  const auto measured = states_of_texts(model, tokenizer, positive);
  for (const double entropy : {0.2, 0.7, 0.95}) {
    CAPTURE(entropy);
    const RouterStart start =
        start_routers(base, child, {RouterInit::Kind::kPrompts, "prompts.json", entropy}, text);
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

TEST_CASE("long texts are cut at what the model was made for, each piece behind its BOS",
          "[model][upcycle]") {
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
  const RouterInit random{RouterInit::Kind::kRandom, {}, 0.5};
  const RouterStart start = start_routers(base, child, random, text);
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

TEST_CASE("clusters of a text's states are the rows, one length for all", "[model][upcycle]") {
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
  const RouterInit cluster{RouterInit::Kind::kCluster, "text.txt", {}};
  const RouterStart start = start_routers(base, child, cluster, text);
  const Llama model = Llama::load(base);
  std::vector<Rows> states(3);
  for (const auto& ids : text.sequences) {
    const auto own = states_of(model, ids);
    for (size_t layer = 0; layer < 3; ++layer) {
      states[layer].insert(states[layer].end(), own[layer].begin(), own[layer].end());
    }
  }
  for (size_t layer = 0; layer < 3; ++layer) {
    check_first_routing(start.layers[layer], states[layer], kUsualEntropy);
    for (size_t expert = 0; expert < 4; ++expert) {
      CHECK(norm_of(row_of(start.layers[layer], expert, 16)) ==
            Approx(start.layers[layer].row_norm).epsilon(1e-5));
      CHECK(start.layers[layer].first_choices[expert] > 0);
    }
  }
  text.sequences = {{3, 4, 5}};
  CHECK(user_error_of([&] { start_routers(base, child, cluster, text); }) ==
        "a text: 3 tokens are fewer than the 4 experts; give a longer text");
  text.sequences = {{3}, {3}, {3}, {3}, {9}, {9}};
  CHECK(user_error_of([&] { start_routers(base, child, cluster, text); }) ==
        "a text: its tokens have only 2 different states in layer 0, 4 experts need as many; give "
        "a text of more kinds");
}

TEST_CASE("a folder holds the rows that were measured, and upcycle.json says what they make",
          "[model][upcycle]") {
  const TempDir folder;
  const io::Checkpoint base(facts_model());
  test::write_file(folder / "prompts.json", R"({"0": ["Where does Bado live?"],
    "1": {"positive": ["What does Bado eat?"], "negative": ["Where does Bado live?"]}})");
  UpcycleSettings settings = settings_of(2);
  settings.out = folder / "out";
  settings.router_init = parse_router_init("prompts:" + (folder / "prompts.json").string());
  const RouterText text =
      text_of_prompts(base, read_prompts(settings.router_init.file, 2, {}), "prompts.json");
  const UpcyclePlan plan = plan_upcycle(base, settings);
  const RouterStart start = start_routers(base, plan.child, settings.router_init, text);
  const OrderedJson report = upcycle(base, plan, settings, {.start = [&] { return start; }});
  const io::Checkpoint child(folder / "out");
  for (const auto& layer : start.layers) {
    CHECK(test::floats(child, fmt::format("model.layers.{}.mlp.gate.weight", layer.layer)) ==
          layer.rows);
  }
  const OrderedJson& init = report["router_init"];
  CHECK(init["kind"] == "prompts");
  CHECK(init["file_sha256"].get<std::string>().size() == 64);
  CHECK(init["entropy"] == kUsualEntropy);
  CHECK(init["tokens"] == start.tokens);
  CHECK(init["layers"][1]["entropy"].get<double>() == Approx(kUsualEntropy).margin(2e-4));
  CHECK(init["layers"][1]["first_choices"].size() == 2);
  CHECK(read_json(folder / "out/upcycle.json")["router_init"] == Json(init));
}

TEST_CASE("the experts of a group start by one row, that of the feed-forward they are cut from",
          "[model][upcycle]") {
  const TempDir folder;
  const io::Checkpoint base(facts_model());
  test::write_file(folder / "prompts.json", R"({"0": ["Where does Bado live?"],
    "1": {"positive": ["What does Bado eat?"], "negative": ["Where does Bado live?"]}})");
  const RouterText prompts =
      text_of_prompts(base, read_prompts(folder / "prompts.json", 2, {}), "prompts.json");
  RouterText plain = prompts;
  plain.experts.clear();
  const std::string file = (folder / "prompts.json").string();
  const std::vector<std::pair<RouterInit, const RouterText*>> ways = {
      {parse_router_init("prompts:" + file), &prompts},
      {parse_router_init("cluster:" + file), &plain},
      {{RouterInit::Kind::kRandom, {}, 0.6}, &plain}};
  for (const auto& [init, text] : ways) {
    INFO(to_string(init));
    UpcycleSettings settings = settings_of(2);
    settings.router_init = init;
    const RouterStart whole = start_routers(base, plan_upcycle(base, settings).child, init, *text);
    settings.granularity = 4;
    settings.out = folder / "out";
    settings.force = true;
    const UpcyclePlan plan = plan_upcycle(base, settings);
    upcycle(base, plan, settings, {.start = [&, text = text, init = init] {
              return start_routers(base, plan.child, init, *text);
            }});
    const Json report = read_json(folder / "out/upcycle.json")["router_init"];
    CHECK(report["layers"] == Json(to_json(whole)["layers"]));
    const io::Checkpoint child(folder / "out");
    for (const auto& layer : whole.layers) {
      const auto rows =
          test::floats(child, fmt::format("model.layers.{}.mlp.gate.weight", layer.layer));
      const size_t width = layer.rows.size() / 2;
      REQUIRE(rows.size() == 8 * width);
      for (size_t i = 0; i < rows.size(); ++i) {
        CHECK(rows[i] == layer.rows[i / (4 * width) * width + i % width]);
      }
    }
  }
}

TEST_CASE("an entropy that no scale reaches is refused", "[model][upcycle]") {
  const io::Checkpoint base(facts_model());
  const ModelConfig child = child_of(base, settings_of(2));
  const std::vector<ExpertPrompts> alike = {{{"What does Bado eat?"}, {}},
                                            {{"What does Bado eat?"}, {}}};
  const RouterInit prompts{RouterInit::Kind::kPrompts, "prompts.json", 0.5};
  CHECK(
      user_error_of([&] {
        start_routers(base, child, prompts, text_of_prompts(base, alike, "prompts.json"));
      }) ==
      "--router-entropy 0.5: in layer 0 the rows of the experts are too alike on prompts.json: at "
      "any scale the entropy is 1.0000 of ln E or more; give texts that differ more, or a higher "
      "entropy");
  const std::vector<ExpertPrompts> nothing_left = {
      {{"What does Bado eat?"}, {}}, {{"What does Bado eat?"}, {"What does Bado eat?"}}};
  CHECK(user_error_of([&] {
          start_routers(base, child, prompts, text_of_prompts(base, nothing_left, "prompts.json"));
        }) ==
        "prompts.json: the negative texts of expert 1 leave nothing of its positive ones; give "
        "texts that differ");
  UpcycleSettings zero = settings_of(2);
  zero.router_std = 0;
  RouterText text;
  text.name = "a text";
  text.sequences = {{3, 4, 5}};
  CHECK(user_error_of([&] {
          start_routers(base, child_of(base, zero), {RouterInit::Kind::kRandom, {}, 0.5}, text);
        }).find("--router-entropy 0.5: in layer 0 the rows of the experts are too alike") == 0);
}

TEST_CASE("prompts name experts by number or by their folder", "[model][upcycle]") {
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
  const auto refused = [&](const std::string& json) {
    const std::string sentence = user_error_of([&] { read(json); });
    REQUIRE(sentence.rfind(file + ": ", 0) == 0);
    return sentence.substr(file.size() + 2);
  };
  CHECK(refused("[]") ==
        "must be an object of experts and their texts, like {\"0\": [\"a text\"]}");
  CHECK(refused(R"({"4": ["a"]})") ==
        "names expert '4', there are experts 0 to 3 and the folders of --expert");
  CHECK(refused(R"({"-1": ["a"]})") ==
        "names expert '-1', there are experts 0 to 3 and the folders of --expert");
  CHECK(refused(R"({"job": ["a"]})") ==
        "'job' is experts 2, 3; give each its own texts by its number");
  CHECK(refused(R"({"0": ["a"], "town": ["a"]})") ==
        "names expert 0 twice, by its number and by its folder");
  CHECK(refused(R"({"0": ["a"], "1": ["a"], "3": ["a"]})") ==
        "says nothing of expert 2; each of the 4 experts needs texts");
  CHECK(refused(R"({"0": []})") == "expert '0': has no text; give it at least one that it is for");
  CHECK(refused(R"({"0": {"negative": ["a"]}})") ==
        "expert '0': has no text; give it at least one that it is for");
  CHECK(refused(R"({"0": "a"})") == "expert '0': must be a list of texts");
  CHECK(refused(R"({"0": {"positive": [1]}})") ==
        "expert '0', 'positive': must be a list of texts");
  CHECK(refused(R"({"0": {"postive": ["a"]}})") ==
        "expert '0': 'postive' is neither 'positive' nor 'negative'");
  CHECK_FALSE(refused("{\"0\": [").empty());
  CHECK_FALSE(refused(R"({"0": ["a"], "0": ["b"]})").empty());
}

TEST_CASE("texts without a token and too many tokens are refused", "[model][upcycle]") {
  const io::Checkpoint base(facts_model());
  const auto refused = [&](const std::string& text) {
    return user_error_of([&] {
      text_of_prompts(base, {ExpertPrompts{{text}, {}}}, "prompts.json");
    });
  };
  CHECK(refused("") == "prompts.json: one of its texts is empty");
  std::string many;
  for (int word = 0; word < 9000; ++word) {
    many += "does ";
  }
  CHECK(refused(many).find("; at most 8192 are read, leave some out") != std::string::npos);
  const TempDir folder;
  test::write_tiny_checkpoint(folder / "dense");
  CHECK(user_error_of([&] {
          text_of_prompts(io::Checkpoint(folder / "dense"), {ExpertPrompts{{"a"}, {}}},
                          "prompts.json");
        }) == (folder / "dense").string() +
                  ": no tokenizer, so the texts of prompts.json cannot be tokenised");
}

TEST_CASE("--router-init and --router-entropy are checked", "[model][upcycle]") {
  CHECK(to_string(parse_router_init("random")) == "random");
  CHECK(to_string(parse_router_init("prompts:a:b.json")) == "prompts:a:b.json");
  CHECK(parse_router_init("cluster:t.txt").kind == RouterInit::Kind::kCluster);
  for (const char* text : {"", "prompts", "prompts:", "kmeans:t.txt", "random:1"}) {
    CHECK(
        user_error_of([&] { parse_router_init(text); }) ==
        fmt::format("--router-init '{}': is none of random, prompts:FILE and cluster:FILE", text));
  }
  const auto refused = [](const char* init, std::optional<double> entropy, const char* router,
                          int64_t experts) {
    RouterInit parsed = parse_router_init(init);
    parsed.entropy = entropy;
    return user_error_of([&] { check_router_init(parsed, route::parse_router(router), experts); });
  };
  CHECK(refused("random", {}, "relu:k=1", 1).empty());
  CHECK(refused("cluster:t.txt", 0.5, "topp:0.4", 2).empty());
  for (const double entropy : {0.0, 1.0, -1.0, 1.5, std::nan("")}) {
    CHECK(refused("random", entropy, "top1", 4) ==
          fmt::format("--router-entropy {}: must lie between 0 (one expert alone) and 1 (all "
                      "alike), a share of ln E",
                      entropy));
  }
  CHECK(
      refused("cluster:t.txt", {}, "relu:k=1", 4) ==
      "--router-init cluster:t.txt: the logits of relu:k=1 are no softmax, so that no entropy can "
      "scale them");
  CHECK(refused("random", 0.5, "top1", 1) ==
        "--router-entropy 0.5: a router of one expert has nothing to choose; give --experts 2 or "
        "more");
}

TEST_CASE("layers are described, and saturated, uniform and idle ones advised on",
          "[model][upcycle]") {
  RouterStart start{"a text", 50, {}};
  start.layers = {{0, {}, 1, 0.7, 0.5, {0.25, 0.5, 0.25}},
                  {1, {}, 1, 0.01, 0.99, {0.5, 0.25, 0.25}},
                  {2, {}, 1, 0.99, 0.35, {0.0, 1.0, 0.0}}};
  CHECK(describe(start.layers[0]) ==
        "layer 0: entropy 0.700 of ln 3, largest probability 0.500, first choices 25.0 % (expert "
        "0) to 50.0 % (expert 1)");
  const auto sentences = advice(start);
  REQUIRE(sentences.size() == 3);
  CHECK(
      sentences[0] ==
      "layer 1: the router starts saturated, its largest probability is 0.990 in the mean and its "
      "gradient near 0; a higher --router-entropy lets it learn");
  CHECK(sentences[1] ==
        "layer 2: the router starts uniform, its largest probability is 0.350 in the mean; a lower "
        "--router-entropy makes its choice count");
  CHECK(sentences[2] ==
        "layer 2: 2 of 3 experts are the first choice of none of the 50 tokens of a text: 0, 2; "
        "texts that differ more would give them some");
}

}  // namespace
}  // namespace moe::model
