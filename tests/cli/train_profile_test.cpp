// moe train --profile: a Chrome trace that has the parts of a step.

#include <set>

#include "core/base/json.h"
#include "tests/cli/commands.h"

namespace moe::test {
namespace {

// Returns the names of the complete events of a trace.
std::multiset<std::string> event_names(const std::string& text) {
  std::multiset<std::string> names;
  const Json trace = parse_json(text, "trace.json");
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("ph", "") == "X") {
      CHECK(event.at("dur").get<double>() >= 0);
      names.insert(event.at("name").get<std::string>());
    }
  }
  return names;
}

}  // namespace

TEST_CASE("--profile writes a Chrome trace of the first steps, with every part of a model",
          "[cli]") {
  const TrainingWorld world;
  world.upcycle("moe", {"--layers", "all"});
  for (const auto& [run, flags] :
       {std::pair("plain", Words{}), {"one", {"--profile", "1"}}, {"two", {"--profile", "2"}}}) {
    succeed(
        world.training(joined({"--steps", "3", "--micro-batch", "1", "-q"}, flags), "moe", run));
  }
  CHECK_FALSE(std::filesystem::exists(world.dir / "plain/trace.json"));
  const auto one = event_names(world.read("one/trace.json"));
  const auto two = event_names(world.read("two/trace.json"));
  for (const char* part : {"routing", "permute", "experts", "combine", "attention", "projections",
                           "norm", "head", "optimizer"}) {
    INFO(part);
    CHECK(one.count(part) > 0);
    CHECK(two.count(part) == 2 * one.count(part));
  }
  CHECK(!world.weights("one").empty());
  CHECK((world.weights("one") == world.weights("plain")));
}

}  // namespace moe::test
