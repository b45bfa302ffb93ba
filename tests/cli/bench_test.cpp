// moe bench: every benchmark runs at a tiny size and reports consistent numbers under the
// documented keys; invalid flags are refused.

#include <filesystem>

#include "core/base/json.h"
#include "core/base/resources.h"
#include "tests/cli/commands.h"
#include "tests/support/data.h"

namespace moe::test {
namespace {

std::string output(const Args& args) { return succeed(joined({"bench"}, args)).out; }

// Runs `moe bench WORDS --json` and checks the keys that all reports have.
Json report(Args args) {
  args.emplace_back("--json");
  const Json json = parse_json(output(args), "moe bench");
  CHECK(json["bench"] == args[0]);
  CHECK(json["threads"] >= 1);
  for (const char* key : {"torch_version", "processor", "instruction_set", "date", "clock"}) {
    CHECK(json[key].is_string());
  }
  return json;
}

// Checks that `ratio` is numerator / denominator.
void check_ratio(const Json& ratio, const Json& numerator, const Json& denominator) {
  CHECK(ratio.get<double>() == Approx(numerator.get<double>() / denominator.get<double>()));
}

void check_timing(const Json& timing) {
  INFO(timing.dump());
  CHECK(timing["best_ms"] > 0);
  CHECK(timing["best_ms"] <= timing["median_ms"]);
  CHECK(timing["median_ms"] <= timing["worst_ms"]);
}

// Checks that "share_of_roof" is the time of the roof / the time of `timing`.
void check_share(const Json& timing, const Json& roof) {
  check_timing(timing);
  check_timing(roof);
  check_ratio(timing["share_of_roof"], roof["median_ms"], timing["median_ms"]);
}

const Args kSmallLayer = {"--tokens", "96",        "--width",  "16",        "--inner",
                          "12",       "--experts", "4",        "--repeats", "2",
                          "--router", "top1",      "topp:0.4", "relu:k=1",  "top2+ir+fr"};

}  // namespace

TEST_CASE("bench layer times a layer and its parts with every router family", "[cli]") {
  const Json json = report(joined({"layer"}, kSmallLayer));
  REQUIRE(json["layers"].size() == 4);
  CHECK(json["settings"]["tokens"] == "96");
  for (const auto& layer : json["layers"]) {
    INFO(layer.dump());
    for (const char* part : {"products", "layer"}) {
      check_share(layer[part], layer["roof"]);
      CHECK(layer[part]["gflops"].get<double>() ==
            Approx(layer["flop"].get<double>() / layer[part]["median_ms"].get<double>() / 1e6));
    }
    check_timing(layer["routing"]);
    for (const char* part : {"routing", "permute", "experts", "combine"}) {
      CHECK(layer["parts_ms"][part] > 0);
    }
    CHECK(layer["peak_bytes"] > 0);
    CHECK(layer["flop"] == 18.0 * layer["rows"].get<double>() * 16 * 12);
  }
  CHECK(json["layers"][0]["rows"].get<int>() + json["layers"][0]["dropped_requests"].get<int>() ==
        96);
  CHECK(json["layers"][1]["padding"] == 0);  // top-p has no slots
  CHECK(json["layers"][3]["router"] == "top2+ir+fr");
}

TEST_CASE("bench gemm times every product of a model with at::mm and with our GEMM", "[cli]") {
  const Json json = report({"gemm", "--tokens", "16", "--repeats", "1"});
  CHECK(json["roof_gflops"] > 0);
  REQUIRE(json["products"].size() == 5 * 3);  // expert up and down, qkv, attention out, head
  for (const auto& product : json["products"]) {
    CHECK(product["library_gflops"] > 0);
    check_ratio(product["share"], product["gflops"], product["library_gflops"]);
  }
  CHECK(json["products"]["expert up dw"]["n"] == 2 * 704);
}

TEST_CASE("bench train times steps, their parts and the roof", "[cli]") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {.layers = 2});
  const Args args = {"train",  dir / "dense", "--upcycle",  "4",         "--layers",
                     "all",    "--router",    "top1+ir+fr", "--seq-len", "16",
                     "--rows", "2",           "--repeats",  "2"};
  const Json json = report(joined(args, {"--threads", "1"}));
  CHECK(json["threads"] == 1);
  CHECK(json["clock"] == "cpu");
  CHECK(json["tokens"] == 32);
  CHECK(json["router"] == "top1+ir+fr");
  check_timing(json["step"]);
  check_ratio(json["tokens_per_second"], 32e3, json["step"]["median_ms"]);
  check_ratio(json["roof_share"], json["gflops"], json["roof_gflops"]);
  CHECK(json["useful_rows"] > 0);
  CHECK(json["peak_bytes"] > 0);
  CHECK(json["last_loss"] > 0);
  for (const char* part :
       {"routing", "permute", "experts", "combine", "attention", "head", "optimizer", "norm"}) {
    INFO(part);
    CHECK(json["parts_ms"][part] > 0);
  }
  const Json dense = report({"train", dir / "dense", "--seq-len", "16", "--threads", "4096"});
  CHECK(dense["threads"] == usable_processors());
  CHECK(dense["router"] == "");
  CHECK(dense["roof_share"] > 0);
}

TEST_CASE("bench eval scores synthetic requests and counts tokens and rows", "[cli]") {
  const Json json = report({"eval", tiny("model"), "--limit", "5", "--repeats", "1", "--parts"});
  REQUIRE(json["sets"].size() == 2);
  CHECK(json["sets"][0]["name"] == "letters");
  CHECK(json["sets"][0]["head_rows"] == 5);  // four letters share one row of logits
  CHECK(json["sets"][1]["name"] == "spans");
  for (const Json& set : json["sets"]) {
    INFO(set.dump());
    check_share(set["scoring"], set["roof"]);
    CHECK(set["questions"] == 5);
    CHECK(set["requests"] == 4 * 5);
    CHECK(set["tokens_computed"] < set["tokens_asked"]);
    CHECK_FALSE(set.contains("drop_share"));
    check_ratio(set["questions_per_second"], 5e3, set["scoring"]["median_ms"]);
    for (const char* part : {"head", "attention", "norm", "projections"}) {
      INFO(part);
      CHECK(set["parts_ms"][part] > 0);
    }
  }
}

TEST_CASE("bench eval counts the operations of a shared expert for every token", "[cli]") {
  const TempDir folder;
  const auto set = [&](const std::string& name, const Args& more) {
    const std::string out = folder / name;
    succeed(joined({"upcycle", tiny("model"), "-o", out, "--quiet"}, more));
    return report({"eval", out, "--limit", "5", "--repeats", "1"})["sets"][0];
  };
  const Json plain = set("plain", {}), shared = set("shared", {"--shared-expert"});
  CHECK_FALSE(plain.contains("parts_ms"));
  const Json config = read_json(folder / "shared/config.json");
  const auto forwards = shared["forwards"].get<int64_t>();
  const int64_t rows = shared["tokens_computed"].get<int64_t>() / forwards;
  const double layer = 2.0 * 3 * config["hidden_size"].get<double>() *
                       config["shared_expert_intermediate_size"].get<double>();
  const auto layers = static_cast<double>(config["moe"]["layers"].size());
  CHECK(shared["flop"].get<double>() - plain["flop"].get<double>() ==
        Approx(layers * layer * static_cast<double>(rows * forwards)));
}

TEST_CASE("bench eval scores tasks and reports the share of dropped requests", "[cli]") {
  const TempDir folder;
  const std::string model = folder / "moe";
  succeed({"upcycle", tiny("model"), "-o", model, "--router", "top1:cf=0.5", "--quiet"});
  const Json json = report({"eval", model, "--tasks", "logiqa", "--data", bench_folder().string(),
                            "--limit", "3", "--repeats", "1"});
  REQUIRE(json["sets"].size() == 1);
  const Json& set = json["sets"][0];
  CHECK(set["name"] == "logiqa");
  CHECK(set["questions"] == 3);
  CHECK(set["tokens_computed"] == set["tokens_asked"]);  // no shared prefixes with a capacity
  CHECK(set["drop_share"].get<double>() > 0);
  CHECK(set["drop_share"].get<double>() < 1);
}

TEST_CASE("bench generate compares a step with the memory bandwidth", "[cli]") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {.max_positions = 512});
  // The time of a step is the difference of two measured times, which is noise for few tokens.
  const Json json = report({"generate", dir / "dense", "--rows", "3", "--prompt-tokens", "2",
                            "--tokens", "400", "--repeats", "2"});
  check_timing(json["step"]);
  check_ratio(json["tokens_per_second"], 3e3, json["step"]["median_ms"]);
  CHECK(json["share_of_read_rate"].get<double>() ==
        Approx(json["active_bytes"].get<double>() / json["read_bytes_per_second"].get<double>() /
               json["step"]["median_ms"].get<double>() * 1e3)
            .epsilon(1e-3));  // active_bytes is rounded
}

TEST_CASE("bench load allocates memory for loaded weights but not for mapped weights", "[cli]") {
  const TempDir dir;
  // 4.2 MB of embedding and head.
  write_tiny_checkpoint(dir / "dense", {.hidden = 512, .vocab = 1024});
  const Json json = report({"load", dir / "dense", "--repeats", "2"});
  CHECK(json["weight_bytes"] >= 2 * 4 * 512 * 1024);
  check_timing(json["load"]);
  CHECK(json["first_ms"] > 0);
  CHECK(json["anonymous_bytes"].get<double>() <
        1.5 * json["weight_bytes"].get<double>() + (2 << 20));
  const Json& mapped = json["mapped"];
  CHECK(mapped["weight_bytes"] == json["weight_bytes"]);  // the folder is f32
  check_timing(mapped["load"]);
  CHECK(mapped["first_token_ms"] > 0);
  CHECK(mapped["anonymous_bytes"].get<double>() < 0.5 * mapped["weight_bytes"].get<double>());
}

TEST_CASE("bench upcycle compares with plain writes and removes its output", "[cli]") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {});
  const Json json =
      report({"upcycle", dir / "dense", "-o", dir / "out", "--experts", "4", "--repeats", "1"});
  CHECK(json["tensor_bytes"] > 0);
  check_ratio(json["disk_share"], json["disk"]["median_ms"], json["upcycle"]["median_ms"]);
  CHECK_FALSE(fs::exists(dir / "out"));
}

TEST_CASE("tables of bench fit in 80 columns", "[cli]") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {});
  const std::string dense = dir / "dense";
  const std::vector<std::pair<Args, Args>> tables = {
      {joined({"layer"}, kSmallLayer), {"products", "share of roof", " GFLOP/s", "experts"}},
      {{"train", dense, "--seq-len", "16", "--repeats", "1"}, {"roof share", "optimizer"}},
      {{"generate", dense, "--prompt-tokens", "2", "--tokens", "64"}, {"share of read rate"}},
      {{"load", dense, "--repeats", "1"}, {"mapped", "first token"}},
      {{"comm", "--ranks", "2", "--bytes", "64", "--repeats", "1"}, {"all to all 64", "rate"}}};
  for (const auto& [args, expected] : tables) {
    const std::string out = output(args);
    CAPTURE(out);
    check_contains(out, expected);
    size_t start = out.find('\n') + 1;  // skips the line with the processor name
    for (size_t end; (end = out.find('\n', start)) != std::string::npos; start = end + 1) {
      CHECK(end - start <= 80);
    }
  }
}

TEST_CASE("bench refuses invalid flags by name", "[cli]") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {});
  const std::string dense = dir / "dense";
  check_refused_each({"bench"}, {{{}, "subcommand"},
                                 {{"gemv"}, "did you mean 'gemm'?"},
                                 {{"route", "--skew=-nan"}, "--skew -nan: must be a finite number"},
                                 {{"layer", "--ep-ranks", "3"}, "--ep-ranks 3"},
                                 {{"layer", "--graph"}, "--graph"},
                                 {{"train", "S", "--upcycle", "4"}, "--upcycle"},
                                 {{"eval", dense, "--tasks", "logiqa"}, "--tasks needs --data DIR"},
                                 {{"generate", dense, "--tokens", "100000"}, "--tokens 100000"},
                                 {{"upcycle", dense, "-o", dense}, "dense"}});
}

}  // namespace moe::test
