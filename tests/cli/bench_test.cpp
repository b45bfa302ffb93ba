// moe bench: what it prints adds up, and it refuses what it cannot measure.

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"

namespace moe::test {
namespace {

const std::vector<std::string> kSmall = {"--tokens",
                                         "96",
                                         "--width",
                                         "16",
                                         "--inner",
                                         "12",
                                         "--experts",
                                         "4",
                                         "--repeats",
                                         "3",
                                         "--router",
                                         "top1",
                                         "topp:0.4",
                                         "relu:k=1",
                                         "top2+ir+fr"};

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
    CHECK(layer["flop"] == 18.0 * layer["rows"].get<double>() * 16 * 12);
  }
  CHECK(json["layers"][0]["rows"].get<int>() + json["layers"][0]["dropped_requests"].get<int>() ==
        96);
  CHECK(json["layers"][3]["router"] == "top2+ir+fr");

  const auto table = run_moe(with({"bench", "route"}, kSmall));
  REQUIRE(table.exit_code == 0);
  CHECK_THAT(table.out, Catch::Matchers::Contains("% of the products"));
  CHECK_THAT(table.out, !Catch::Matchers::Contains("\n  layer"));
}

TEST_CASE("bench refuses routers and ranks that do not fit", "[cli]") {
  const auto refused = [](const std::vector<std::string>& arguments) {
    const auto run = run_moe(with({"bench"}, arguments));
    CHECK(run.exit_code == 2);
    return run.err;
  };
  CHECK_THAT(refused({"--router", "top9"}), Catch::Matchers::Contains("9"));
  CHECK_THAT(refused({"--ep-ranks", "3"}), Catch::Matchers::Contains("use a divisor"));
  CHECK_THAT(refused({"gemv"}), Catch::Matchers::Contains("gemv"));
  CHECK_THAT(refused({"--router", "relu:k=1", "--cf", "1"}),
             Catch::Matchers::Contains("only top-k routers have a capacity"));
}

}  // namespace moe::test
