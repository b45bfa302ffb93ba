// The statistics file of an evaluation: parts add up to the total and equal those of separate runs.
#include "core/eval/report/routing_stats.h"

#include <cmath>
#include <numeric>

#include "core/eval/evaluate.h"
#include "tests/support/data.h"
#include "tests/support/mixture.h"
#include "tests/support/user_error.h"

namespace moe::eval {
namespace {

using namespace moe::test;

// Upcycles the tiny model with a router that sends tokens to different experts.
void write_mixture(const std::filesystem::path& out, const std::string& router) {
  test::write_mixture(tiny_model_folder(), out,
                      {.router = router, .experts = 4, .router_std = 0.1, .ep_ranks = 2});
}

EvalSettings settings_of(const std::filesystem::path& model) {
  EvalSettings settings;
  settings.model = model;
  settings.data = bench_folder();
  settings.limit = 6;
  settings.group_tokens = 100;
  settings.batch_tokens = 150;
  settings.stats_by = {true, true, true};
  return settings;
}

const std::string kQuiz =
    "{\"question\": \"Who is it?\", \"choices\": [\"Lily\", \"xq\", \"Tim\"], \"answer\": 0, "
    "\"source\": \"people\"}\n"
    "{\"context\": \"Once upon a\", \"choices\": [\"time\", \"qqqq\"], \"answer\": \"A\"}\n"
    "{\"context\": \"One day, a girl named\", \"choices\": [\"Lily went\", \"Q\"], \"answer\": 1, "
    "\"source\": \"people\"}\n";

// The keys that counts of tokens and counters both have.
const std::vector<std::string> kShared = {
    "tokens",      "requests",  "dropped_requests", "dropped_tokens", "unserved_tokens",
    "fr_requests", "fr_filled", "fr_rejected",      "ir_tokens",      "rows"};

// Checks that the values of `keys` in `parts` add up to `whole`, in total and in each layer.
void check_sums(const OrderedJson& parts, const OrderedJson& whole,
                const std::vector<std::string>& keys) {
  for (const auto& key : keys) {
    CAPTURE(key);
    int64_t sum = 0;
    for (const auto& part : parts) {
      sum += part["total"][key].get<int64_t>();
    }
    CHECK(sum == whole["total"][key].get<int64_t>());
    for (size_t layer = 0; layer < whole["layers"].size(); ++layer) {
      int64_t in_layer = 0;
      for (const auto& part : parts) {
        in_layer += part["layers"][layer][key].get<int64_t>();
      }
      CHECK(in_layer == whole["layers"][layer][key].get<int64_t>());
    }
  }
}

double entropy(const std::vector<double>& counts, double all) {
  double bits = 0;
  for (const double count : counts) {
    bits -= count > 0 ? count / all * std::log2(count / all) : 0;
  }
  return bits;
}

// Checks that the rows of each expert add up to its load, and that their mutual information is
// H(source) + H(expert) - H(source, expert).
void check_experts_by_source(const OrderedJson& json) {
  for (size_t layer = 0; layer < json["layers"].size(); ++layer) {
    std::vector<int64_t> load;
    std::vector<double> cells, by_source, by_expert;
    for (const auto& source : json["source"]) {
      const auto rows = source["layers"][layer]["tokens_per_expert"].get<std::vector<int64_t>>();
      load.resize(rows.size());
      by_source.push_back(0);
      for (size_t expert = 0; expert < rows.size(); ++expert) {
        load[expert] += rows[expert];
        cells.push_back(static_cast<double>(rows[expert]));
        by_source.back() += static_cast<double>(rows[expert]);
      }
    }
    CHECK(load == json["layers"][layer]["load"].get<std::vector<int64_t>>());
    by_expert.assign(load.begin(), load.end());
    const double all = std::accumulate(by_expert.begin(), by_expert.end(), 0.0);
    const OrderedJson& found = json["source_information"][layer];
    CHECK(found["bits"].get<double>() ==
          Approx(entropy(by_source, all) + entropy(by_expert, all) - entropy(cells, all))
              .margin(1e-9));
    CHECK(found["bits_by_chance"].get<double>() ==
          Approx(3 * 2 / (2 * all * std::log(2.0))));  // four experts, three sources
  }
}

TEST_CASE("sums over tasks, over sources and over the vocabulary equal the total", "[eval]") {
  for (const char* router : {"top2+ir+fr:cf=0.5", "top1:cf=1", "topp:0.4", "relu:k=1"}) {
    CAPTURE(router);
    const TempDir folder;
    write_mixture(folder / "moe", router);
    write_file(folder / "mine.jsonl", kQuiz);
    EvalSettings settings = settings_of(folder / "moe");
    settings.tasks = {(folder / "mine.jsonl").string(), "arc_easy"};
    settings.stats = folder / "new folder/stats.json";
    const RunReport report = evaluate(settings);
    REQUIRE(report.routing);
    const OrderedJson json = stats_json(*report.routing);
    CHECK(json.dump(2) + "\n" == read_file(settings.stats));
    CHECK(json["total"]["tokens"].get<int64_t>() ==
          report.tasks[0].run.input_tokens + report.tasks[1].run.input_tokens);
    check_sums(json["task"], json, kShared);
    check_sums(json["task"], json, {"slots_total", "slots_used", "padding", "rows_sent"});
    check_sums(json["source"], json, kShared);

    REQUIRE(json["source"].size() == 3);
    check_experts_by_source(json);
    CHECK(json["source"][0]["source"] == "people");
    CHECK(json["source"][1]["source"] == (folder / "mine.jsonl").string());
    CHECK(json["source"][2]["source"] == "arc/ARC-Easy-Test.jsonl");
    int64_t count = 0;
    double rows = 0;
    const auto layers = static_cast<double>(json["layers"].size());
    for (const auto& token : json["token"]) {
      count += token["count"].get<int64_t>();
      rows += token["count"].get<double>() * token["experts_per_token"].get<double>() * layers;
    }
    CHECK(count == json["total"]["tokens"].get<int64_t>());
    CHECK(rows == Approx(json["total"]["rows"].get<double>()));

    // Statistics do not change the scores.
    settings.stats_by = {};
    settings.stats.clear();
    CHECK(results_json(evaluate(settings))["results"] == results_json(report)["results"]);
  }
}

TEST_CASE("without a capacity, counts of a source equal those of its requests alone", "[eval]") {
  const TempDir folder;
  write_mixture(folder / "moe", "topp:0.4");
  const std::string a =
      "{\"context\": \"Once upon a time\", \"continuation\": \" there was\", \"source\": \"a\"}\n";
  const std::string b = "{\"context\": \"Tim\", \"continuation\": \" ran home.\"}\n";
  const auto sources = [&](const std::string& text) {
    write_file(folder / "r.jsonl", text);
    EvalSettings settings = settings_of(folder / "moe");
    settings.stats = folder / "stats.json";
    settings.force = true;
    evaluate_requests(settings, folder / "r.jsonl");
    return read_json(settings.stats)["source"];
  };
  const Json both = sources(b + a + b);
  REQUIRE(both.size() == 2);
  CHECK(both[0]["source"] == (folder / "r.jsonl").string());
  CHECK(both[0] == sources(b + b)[0]);
  CHECK(both[1] == sources(a)[0]);
  CHECK(both[1]["total"]["experts_per_token"].get<double>() > 1);
}

TEST_CASE("gold counts the context with the right answer only", "[eval]") {
  const TempDir folder;
  write_mixture(folder / "moe", "topp:0.4");
  write_file(folder / "mine.jsonl", kQuiz);
  write_file(folder / "gold.jsonl",
             "{\"context\": \"Question: Who is it?\\nAnswer:\", \"continuation\": \" Lily\"}\n"
             "{\"context\": \"Once upon a\", \"continuation\": \" time\"}\n"
             "{\"context\": \"One day, a girl named\", \"continuation\": \" Q\"}\n");
  EvalSettings settings = settings_of(folder / "moe");
  settings.stats = folder / "stats.json";
  evaluate_requests(settings, folder / "gold.jsonl");
  settings.tasks = {(folder / "mine.jsonl").string()};
  settings.stats.clear();
  const OrderedJson json = stats_json(evaluate(settings).routing.value());
  const Json alone = read_json(folder / "stats.json")["source"][0];
  CHECK(Json(json["task"][0]["gold"]["total"]) == alone["total"]);
  CHECK(Json(json["task"][0]["gold"]["layers"]) == alone["layers"]);
}

TEST_CASE("texts give the routing and the complete words of each token", "[eval]") {
  const TempDir folder;
  write_mixture(folder / "moe", "topp:0.4");
  const std::string story = "Once upon a time, there was a little girl. A girl, a cat and a dog.";
  write_file(folder / "story.txt", story);
  EvalSettings settings = settings_of(folder / "moe");
  settings.bos = Bos::kOff;
  const RoutingStats stats = evaluate_texts(settings, {folder / "story.txt"});

  const io::Tokenizer tokenizer = io::Tokenizer::load(settings.model, 0);
  const std::vector<int64_t> ids = tokenizer.encode(story);
  CHECK(stats.layers.at(0).tokens == static_cast<int64_t>(ids.size()));
  for (const auto& entry : stats.tokens.vocabulary) {
    CAPTURE(entry.piece);
    int64_t count = 0, complete = 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      const PieceShape next =
          i + 1 < ids.size() ? piece_shape(tokenizer.piece(ids[i + 1])) : PieceShape();
      count += ids[i] == entry.id;
      complete += ids[i] == entry.id && entry.piece.starts_with("\u2581") &&
                  (next.starts_word || !next.starts_letter);
    }
    CHECK(entry.count == count);
    CHECK(entry.complete == complete);
    CHECK(entry.rows >= count * static_cast<int64_t>(stats.layers.size()));  // top-p: one or more
  }
  CHECK(std::any_of(
      stats.tokens.vocabulary.begin(), stats.tokens.vocabulary.end(),
      [](const auto& entry) { return entry.piece == "\u2581a" && entry.complete > 0; }));
}

TEST_CASE("a piece begins a word, a letter or neither", "[eval]") {
  struct Case {
    std::vector<std::string> pieces;
    bool word, letter;
  };
  for (const auto& [pieces, word, letter] : std::vector<Case>{
           {{"\xE2\x96\x81the", "\xE2\x96\x81", " the", " "}, true, false},
           {{"ing", "Z", "\xC3\xA9t", "\xE4\xB8\xAD"}, false, true},  // é, a CJK character
           // «, times, ’, an emoji, and a character that is cut off
           {{"\xC2\xAB", "\xC3\x97", "\xE2\x80\x99s", "\xF0\x9F\x98\x80", ".", "7", "<0x0A>", "",
             "\xE2"},
            false,
            false}}) {
    for (const auto& piece : pieces) {
      CAPTURE(piece);
      CHECK(piece_shape(piece).starts_word == word);
      CHECK(piece_shape(piece).starts_letter == letter);
    }
  }
}

TEST_CASE("unknown words of --stats-by are refused with the nearest", "[eval]") {
  const StatsBy by = parse_stats_by({"layer", "token", "source"});
  CHECK((by.token && by.source && !by.task));
  CHECK_FALSE(parse_stats_by({}).any());
  CHECK_THAT(user_error_of([] { parse_stats_by({"tokens"}); }),
             contains_text("'tokens'") && contains_text("'token'"));
}

TEST_CASE("a statistics file that exists or cannot be written is refused", "[eval]") {
  const TempDir folder;
  const std::filesystem::path there = folder / "there.json";
  write_file(there, "x");
  check_stats_file(there, true);
  check_stats_file(folder / "new/stats.json", false);
  for (const auto& [file, force] : {std::pair(there, false), std::pair(folder.path(), true),
                                    std::pair(there / "stats.json", true)}) {
    CHECK_THAT(user_error_of([f = file, o = force] { check_stats_file(f, o); }),
               contains_text(folder.path().string()));
  }
}

}  // namespace
}  // namespace moe::eval
