// moe train --profile: a Chrome trace that has the parts of a step.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

namespace moe::test {
namespace {

// Names and durations of the trace's events.
std::multiset<std::string> names_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::multiset<std::string> names;
  const Json trace = parse_json(text, file.string());
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("ph", "") == "X") {  // a complete event: it has a beginning and a length
      CHECK(event.at("dur").get<double>() >= 0);
      names.insert(event.at("name").get<std::string>());
    }
  }
  return names;
}

}  // namespace

TEST_CASE("--profile writes a Chrome trace of the first steps, with every part of a model",
          "[cli]") {
  const TempDir dir;
  write_tiny_checkpoint(dir / "dense", {});
  REQUIRE(run_moe({"upcycle", (dir / "dense").string(), "-o", (dir / "moe").string(), "--experts",
                   "4", "--layers", "all"})
              .exit_code == 0);
  std::ofstream(dir / "rows.jsonl")
      << R"({"input_ids": [3, 4, 5, 6, 7, 8], "labels": [3, 4, 5, 6, 7, 8]})" << '\n';
  const auto train = [&](const char* run, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train",
                                      (dir / "moe").string(),
                                      "-o",
                                      (dir / run).string(),
                                      "--data",
                                      (dir / "rows.jsonl").string(),
                                      "--steps",
                                      "3",
                                      "--micro-batch",
                                      "1",
                                      "-q"};
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_moe(words);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
  };
  train("plain", {});
  CHECK_FALSE(std::filesystem::exists(dir / "plain" / "trace.json"));
  train("one", {"--profile", "1"});
  train("two", {"--profile", "2"});
  const auto one = names_of(dir / "one" / "trace.json");
  const auto two = names_of(dir / "two" / "trace.json");
  for (const char* part : {"routing", "permute", "experts", "combine", "attention", "projections",
                           "norm", "head", "optimizer"}) {
    INFO(part);
    CHECK(one.count(part) > 0);
    CHECK(two.count(part) == 2 * one.count(part));
  }
  const auto weights = [&](const char* run) {
    std::ifstream in(dir / run / "final" / "model.safetensors", std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  CHECK(!weights("one").empty());
  CHECK((weights("one") == weights("plain")));  // looking on changes nothing
}

}  // namespace moe::test
