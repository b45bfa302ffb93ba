// moe bench: what it prints adds up, and it refuses what it cannot measure.

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "core/base/json.h"
#include "core/base/usable_processors.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::test {
namespace {

const std::vector<std::string> kSmall = {
    "--tokens",  "96", "--width",  "16",   "--inner",  "12",       "--experts", "4",
    "--repeats", "3",  "--router", "top1", "topp:0.4", "relu:k=1", "top2+ir+fr"};

std::vector<std::string> with(std::vector<std::string> first,
                              const std::vector<std::string>& rest) {
  first.insert(first.end(), rest.begin(), rest.end());
  return first;
}

}  // namespace

TEST_CASE("bench measures a layer with every family of router", "[cli]") {
  const auto run = run_moe(with({"bench", "layer", "--json"}, kSmall));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "bench");
  REQUIRE(json["layers"].size() == 4);
  CHECK(json["settings"]["ep_ranks"] == 4);
  for (const auto& layer : json["layers"]) {
    INFO(layer.dump());
    for (const char* part : {"roof", "products", "routing", "counting", "layer"}) {
      CHECK(layer[part]["best_ms"] > 0);
      CHECK(layer[part]["best_ms"] <= layer[part]["median_ms"]);
      CHECK(layer[part]["median_ms"] <= layer[part]["worst_ms"]);
    }
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

  const auto table = run_moe(with({"bench", "route"}, kSmall));
  REQUIRE(table.exit_code == 0);
  CHECK_THAT(table.out, moe::test::contains_text("% of the products"));
  CHECK_THAT(table.out, !moe::test::contains_text("\n  layer"));
}

TEST_CASE("bench gemm sets our products beside the library's", "[cli]") {
  const auto run = run_moe({"bench", "gemm", "--tokens", "16", "--repeats", "1", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "bench");
  CHECK(json["bench"] == "gemm");
  CHECK(json["roof_gflops"] > 0);
  REQUIRE(json["products"].size() == 5);  // expert up and down, qkv, attention out, head
  for (const auto& product : json["products"]) {
    for (const char* form : {"y", "dx", "dw"}) {
      CHECK(product[form]["gflops"] > 0);
      CHECK(product[form]["library_gflops"] > 0);
    }
  }
}

TEST_CASE("bench train times steps and their parts, and shows the change to an earlier run",
          "[cli]") {
  const TempDir dir;
  TinyCheckpoint shape;
  shape.layers = 2;
  write_tiny_checkpoint(dir / "dense", shape);
  REQUIRE(run_moe({"upcycle", (dir / "dense").string(), "-o", (dir / "moe").string(), "--experts",
                   "4", "--layers", "all"})
              .exit_code == 0);
  const std::vector<std::string> command = {"bench",     "train",      (dir / "moe").string(),
                                            "--router",  "top1+ir+fr", "--seq-len",
                                            "16",        "--rows",     "2",
                                            "--repeats", "3",          "--threads",
                                            "1",         "--json"};
  const auto run = run_moe(command);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "bench");
  CHECK(json["tokens"] == 32);
  CHECK(json["router"] == "top1+ir+fr");
  CHECK(json["step"]["best_ms"] <= json["step"]["median_ms"]);
  CHECK(json["roof_share"] > 0);
  CHECK(json["roof_share"] < 1);
  CHECK(json["useful_rows"] > 0);
  CHECK(json["peak_bytes"] > 0);
  for (const char* part :
       {"routing", "permute", "experts", "combine", "attention", "head", "optimizer", "norm"}) {
    INFO(part);
    CHECK(json["parts_ms"][part] > 0);
  }
  std::ofstream(dir / "before.json") << run.out;
  auto words = command;
  words.insert(words.end(), {"--against", (dir / "before.json").string()});
  const auto again = run_moe(words);
  REQUIRE(again.exit_code == 0);
  const Json changed = parse_json(again.out, "bench");
  CHECK(changed["changes"]["step.median_ms"]["before"] == json["step"]["median_ms"]);
  CHECK(changed["changes"]["step.median_ms"]["after"] == changed["step"]["median_ms"]);
  CHECK(changed["changes"].contains("parts_ms.attention"));

  words = command;
  *(std::find(words.begin(), words.end(), "--threads") + 1) = "4096";
  const auto many = run_moe(words);
  INFO(many.err);
  REQUIRE(many.exit_code == 0);
  CHECK(parse_json(many.out, "bench")["threads"] == usable_processors());

  words = command;
  *(std::find(words.begin(), words.end(), "--threads") + 1) = "2";
  const auto shared = run_moe(words);
  REQUIRE(shared.exit_code == 0);
  const Json by_two = parse_json(shared.out, "bench");
  CHECK(by_two["one_thread_parts_ms"]["experts"] > 0);
  // caller - others / (n - 1), of caller + others.
  REQUIRE(by_two["counted"].size() == 4);  // by 1, 2, 8 and 16 threads
  const Json& counted = by_two["counted"][1];
  CHECK(counted["threads"] == 2);
  const double caller = counted["caller_ms"], others = counted["others_ms"];
  CHECK(caller > others);
  CHECK(by_two["serial_share"].get<double>() == Approx((caller - others) / (caller + others)));
  CHECK(counted["parts"]["experts"]["caller_ms"] > 0);
  CHECK(!json.contains("serial_share"));

  const auto other = run_moe({"bench", "gemm", "--against", (dir / "before.json").string()});
  CHECK(other.exit_code == 2);
  CHECK_THAT(other.err, moe::test::contains_text("is of moe bench train, not of moe bench gemm"));
  std::ofstream(dir / "none.json") << "[1]";
  const auto none = run_moe({"bench", "gemm", "--against", (dir / "none.json").string()});
  CHECK(none.exit_code == 2);
  CHECK_THAT(none.err, moe::test::contains_text("is no measurement"));
  const auto missing = run_moe({"bench", "gemm", "--against", (dir / "missing").string()});
  CHECK(missing.exit_code == 2);
  CHECK_THAT(missing.err, moe::test::contains_text("give what moe bench --json printed"));
}

TEST_CASE("bench load holds one copy of the weights, and none of those that are mapped", "[cli]") {
  const TempDir dir;
  TinyCheckpoint shape;
  shape.hidden = 512;  // 4.2 MB of embedding and head, which a second copy would show beside
  shape.vocab = 1024;
  write_tiny_checkpoint(dir / "dense", shape);
  const auto run = run_moe({"bench", "load", (dir / "dense").string(), "--repeats", "2", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "bench");
  CHECK(json["weight_bytes"] >= 2 * 4 * 512 * 1024);
  CHECK(json["load"]["median_ms"] > 0);
  CHECK(json["anonymous_bytes"].get<double>() <
        1.5 * json["weight_bytes"].get<double>() + (2 << 20));
  const Json& mapped = json["mapped"];
  CHECK(mapped["weight_bytes"] == json["weight_bytes"]);  // the folder is f32
  CHECK(mapped["load"]["median_ms"] > 0);
  CHECK(mapped["first_token_ms"] > 0);
  CHECK(mapped["anonymous_bytes"].get<double>() < 0.5 * mapped["weight_bytes"].get<double>());
}

TEST_CASE("bench upcycle leaves nothing behind", "[cli]") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {});
  const auto run = run_moe({"bench", "upcycle", (dir / "dense").string(), "-o",
                            (dir / "out").string(), "--experts", "4", "--repeats", "1", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "bench");
  CHECK(json["tensor_bytes"] > 0);
  CHECK(json["disk_share"] > 0);
  CHECK_FALSE(std::filesystem::exists(dir / "out"));
}

TEST_CASE("bench refuses routers and ranks that do not fit", "[cli]") {
  const auto refused = [](const std::vector<std::string>& arguments) {
    const auto run = run_moe(with({"bench"}, arguments));
    CHECK(run.exit_code == 2);
    return run.err;
  };
  CHECK_THAT(refused({"--router", "top9"}), moe::test::contains_text("9"));
  CHECK_THAT(refused({"--ep-ranks", "3"}), moe::test::contains_text("use a divisor"));
  CHECK_THAT(refused({"gemv"}),
             moe::test::contains_text("unknown command 'bench gemv', did you mean 'gemm'?"));
  CHECK_THAT(refused({"--router", "relu:k=1", "--cf", "1"}),
             moe::test::contains_text("only top-k and expert-choice routers have a capacity"));
}

TEST_CASE("a flag that bench refuses is the one that was wrong", "[cli]") {
  const auto refusal = [](const std::vector<std::string>& arguments) {
    const auto run = run_moe(with({"bench"}, arguments));
    CHECK(run.exit_code == 2);
    return run.err;
  };
  CHECK(refusal({"comm", "--ranks", "2", "--comm-timeout", "9", "--repeats", "0"}) ==
        "moe: --repeats 0: must be a whole number of 1 to 1000000\n");
  CHECK(refusal({"comm", "--rank", "2"}) ==
        "moe: unknown flag '--rank', did you mean '--ranks'?; see moe bench comm --help\n");
  CHECK(refusal({"--repeats", "0"}) == "moe: --repeats 0: must be a whole number of 1 to 1000\n");
  // A flag of a layer would change nothing of another measurement.
  CHECK(refusal({"gemm", "--skew", "1"}) ==
        "moe: unknown flag '--skew'; see moe bench gemm --help\n");
  CHECK(refusal({"--threads", "1", "gemm"}) ==
        "moe: --threads is given to moe bench, not to moe bench gemm; write it after 'gemm'\n");
}

TEST_CASE("bench measures a layer where nothing is named", "[cli]") {
  const auto run = run_moe(with({"bench", "--json"}, kSmall));
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  CHECK(parse_json(run.out, "bench")["bench"] == "layer");
  CHECK(parse_json(run.out, "bench")["layers"][0].contains("layer"));
  const auto route = run_moe(with({"bench", "route", "--json"}, kSmall));
  REQUIRE(route.exit_code == 0);
  CHECK(parse_json(route.out, "bench")["bench"] == "route");
  CHECK_FALSE(parse_json(route.out, "bench")["layers"][0].contains("layer"));
}

TEST_CASE("bench comm prints once, whoever has the result", "[cli]") {
  const auto run = run_moe({"bench", "comm", "--ranks", "2", "--bytes", "64", "--repeats", "2",
                            "--threads", "1", "--json"});
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const Json json = parse_json(run.out, "bench");  // one object, of rank 0
  CHECK(json["bench"] == "comm");
  CHECK(json["settings"]["ranks"] == 2);
  CHECK(json["rows"].size() == 4);
  CHECK(json["within_host"]["bytes_per_second"] > 0);
}

}  // namespace moe::test
