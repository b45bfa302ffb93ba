// moe bench eval: its counts are those of the requests, and it refuses what it cannot measure.

#include <map>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/data.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::test {
namespace {

Json bench(std::vector<std::string> words) {
  words.insert(words.begin(), {"bench", "eval"});
  words.insert(words.end(), {"--repeats", "1", "--json"});
  const auto run = run_moe(words);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  return parse_json(run.out, "bench eval");
}

void check_set(const Json& set) {
  INFO(set.dump());
  CHECK(set["requests"] == 4 * set["questions"].get<int>());
  CHECK(set["tokens_computed"] < set["tokens_asked"]);
  CHECK(set["scoring"]["best_ms"] > 0);
  CHECK(set["scoring"]["best_ms"] <= set["scoring"]["median_ms"]);
  CHECK(set["share_of_roof"].get<double>() ==
        Approx(set["roof"]["median_ms"].get<double>() / set["scoring"]["median_ms"].get<double>()));
  CHECK(set["questions_per_second"].get<double>() ==
        Approx(1e3 * set["questions"].get<double>() / set["scoring"]["median_ms"].get<double>()));
}

TEST_CASE("bench eval scores synthetic questions where no data is given", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const std::string model = (shared_data() / "stories260K-hf").string();
  const Json json = bench({model, "--limit", "5"});
  CHECK(json["threads"] >= 1);
  REQUIRE(json["sets"].size() == 2);
  CHECK(json["sets"][0]["name"] == "letters");
  CHECK(json["sets"][0]["head_rows"] == 5);  // one row of logits serves four letters
  CHECK(json["sets"][1]["name"] == "spans");
  for (const Json& set : json["sets"]) {
    CHECK(set["questions"] == 5);
    CHECK_FALSE(set.contains("drop_share"));
    check_set(set);
  }
  CHECK(bench({model, "--limit", "5"})["sets"][1]["tokens_asked"] ==
        json["sets"][1]["tokens_asked"]);  // the same questions again
}

TEST_CASE("bench eval says where the time goes", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const std::string model = (shared_data() / "stories260K-hf").string();
  CHECK_FALSE(bench({model, "--limit", "5"})["sets"][0].contains("parts"));
  for (const std::string precision : {"fp32", "bf16"}) {
    const Json set =
        bench({model, "--limit", "20", "--parts", "--precision", precision})["sets"][1];
    double shares = 0, flop = 0;
    std::map<std::string, Json> parts;
    for (const Json& part : set["parts"]) {
      shares += part["share"].get<double>();
      parts[part["name"]] = part;
      if (part.contains("gflops")) {
        flop += part["gflops"].get<double>() * part["ms"].get<double>() * 1e6;
        CHECK(part["share_of_roof"] > 0);
      }
    }
    INFO(set.dump());
    CHECK(shares == Approx(1));
    for (const char* name : {"head", "attention", "norm", "product 64 x 128", "the rest"}) {
      CHECK(parts.count(name) == 1);
    }
    // Attention is not among the products that `flop` counts, of averages of whole rows.
    flop -=
        parts["attention"]["gflops"].get<double>() * parts["attention"]["ms"].get<double>() * 1e6;
    CHECK(flop == Approx(set["flop"].get<double>()).epsilon(0.02));
  }
}

TEST_CASE("bench generate tells a token's time beside the reading of memory", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const std::string model = (shared_data() / "stories260K-hf").string();
  const auto run = run_moe(
      {"bench", "generate", model, "--rows", "3", "--tokens", "200", "--repeats", "3", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "bench generate");
  CHECK(json["step"]["median_ms"] > 0);
  CHECK(json["share_of_read_rate"].get<double>() ==
        Approx(json["active_bytes"].get<double>() / json["read_bytes_per_second"].get<double>() /
               json["step"]["median_ms"].get<double>() * 1e3));
  const auto refused = run_moe({"bench", "generate", model, "--tokens", "100000"});
  CHECK(refused.exit_code == 2);
  CHECK(refused.err.find("more than the model's window") != std::string::npos);
}

TEST_CASE("bench eval counts what a shared expert computes of every token", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const auto set_of = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"upcycle", (shared_data() / "stories260K-hf").string(), "-o",
                                      (folder / name).string(), "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    REQUIRE(run_moe(words).exit_code == 0);
    return bench({(folder / name).string(), "--limit", "5"})["sets"][0];
  };
  const Json plain = set_of("plain", {}), shared = set_of("shared", {"--shared-expert"});
  const Json config = read_json(folder / "shared/config.json");
  const auto forwards = shared["forwards"].get<int64_t>();
  const int64_t rows = shared["tokens_computed"].get<int64_t>() / forwards;
  const double layer = 2.0 * 3 * config["hidden_size"].get<double>() *
                       config["shared_expert_intermediate_size"].get<double>();
  CHECK(shared["flop"].get<double>() - plain["flop"].get<double>() ==
        Approx(3 * layer * static_cast<double>(rows * forwards)));
}

TEST_CASE("bench eval shows the change to an earlier run", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const std::string model = (shared_data() / "stories260K-hf").string();
  write_file(folder / "before.json", bench({model, "--limit", "5"}).dump());
  const Json json = bench({model, "--limit", "5", "--against", (folder / "before.json").string()});
  REQUIRE(json.contains("changes"));
  CHECK_FALSE(json["changes"].empty());
}

TEST_CASE("bench eval scores tasks, and says what a capacity drops", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  const std::string model = (folder / "moe").string();
  const auto made = run_moe({"upcycle", (shared_data() / "stories260K-hf").string(), "-o", model,
                             "--router", "top1:cf=0.5", "--quiet"});
  INFO(made.err);
  REQUIRE(made.exit_code == 0);
  const std::string data = (shared_data() / "bench").string();
  const Json json = bench({model, "--tasks", "logiqa", "--data", data, "--limit", "3"});
  REQUIRE(json["sets"].size() == 1);
  const Json& set = json["sets"][0];
  CHECK(set["name"] == "logiqa");
  CHECK(set["questions"] == 3);
  CHECK(set["tokens_computed"] == set["tokens_asked"]);  // groups are fixed, nothing is shared
  CHECK(set["drop_share"].get<double>() > 0);
  CHECK(set["drop_share"].get<double>() < 1);
}

TEST_CASE("a folder in bf16 takes half the memory of one in f32", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const TempDir folder;
  TinyCheckpoint shape = {.hidden = 256, .intermediate = 704, .layers = 8, .vocab = 32000};
  shape.max_positions = 1024;
  const auto peak_of = [&](io::DType dtype) {
    const auto model = folder / io::dtype_name(dtype);
    shape.dtype = dtype;
    write_tiny_checkpoint(model, shape);
    std::filesystem::copy(shared_data() / "stories260K-hf" / "tokenizer.model", model);
    const Json json = bench({model.string(), "--limit", "1", "--threads", "1"});
    return json["sets"][0]["peak_bytes"].get<double>();
  };
  const double matrices = 2 * 32000 * 256 + 8 * (3 * 256 * 256 + 3 * 256 * 704);  // 2 of 4 heads
  const double saved = peak_of(io::DType::kF32) - peak_of(io::DType::kBF16);
  CHECK(saved > 0.9 * 2 * matrices);
}

TEST_CASE("bench eval refuses what it cannot measure", "[cli]") {
  MOE_NEED_SHARED_DATA();
  const std::string model = (shared_data() / "stories260K-hf").string();
  const std::string data = (shared_data() / "bench").string();
  const auto refusal = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"bench", "eval"});
    const auto run = run_moe(words);
    CHECK(run.exit_code == 2);
    return run.err;
  };
  CHECK(refusal({model, "--tasks", "logiqa"}).find("--tasks needs --data DIR") !=
        std::string::npos);
  CHECK(refusal({model, "--tasks", "bbh_zeroshot_boolean_expressions", "--data", data})
            .find("answers are generated, not scored") != std::string::npos);
  CHECK(refusal({}).find("MODEL") != std::string::npos);
  CHECK(refusal({model, "--repeats", "0"}).find("--repeats") != std::string::npos);
}

}  // namespace
}  // namespace moe::test
