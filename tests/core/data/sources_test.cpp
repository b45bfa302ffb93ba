#include "core/data/example_set.h"
#include "tests/support/catch.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::data;
using namespace moe::test;

TEST_CASE("a weight stands after the last colon, or there is none", "[data]") {
  const auto plain = parse_sources({"a.jsonl", "dir/b.jsonl"});
  REQUIRE(plain.size() == 2);
  CHECK(plain[1].file == "dir/b.jsonl");
  CHECK(plain[1].weight == 0);
  const auto weighted = parse_sources({"a.jsonl:0.7", "b:c.jsonl:3e-1", "c:2"});
  CHECK(weighted[0].file == "a.jsonl");
  CHECK(weighted[0].weight == 0.7);
  CHECK(weighted[1].file == "b:c.jsonl");
  CHECK(weighted[1].weight == 0.3);
  CHECK(weighted[2].weight == 2);
  CHECK(parse_sources({"s3:bucket"})[0].file == "s3:bucket");  // no number: part of the name
}

TEST_CASE("a path that exists wins over the reading as a weight", "[data]") {
  const TempDir dir;
  write_file(dir / "a:0.5", "x");
  const auto source = parse_sources({dir / "a:0.5"}).at(0);
  CHECK(source.file == dir / "a:0.5");
  CHECK(source.weight == 0);
  CHECK(parse_sources({dir / "a:0.5:0.25"})[0].file == dir / "a:0.5");
  CHECK(parse_sources({dir / "a:0.5:0.25"})[0].weight == 0.25);
}

TEST_CASE("weights that make no sense are refused", "[data]") {
  const auto error = [](const std::vector<std::filesystem::path>& words) {
    return user_error_of([&] { parse_sources(words); });
  };
  for (const char* weight : {"0", "-1", "nan", "inf", "1e999"}) {
    const std::string word = std::string("a.jsonl:") + weight;
    CHECK(error({word}) ==
          "--data " + word + ": the weight after the colon must be a positive number");
  }
  CHECK(error({"a.jsonl:1", "b.jsonl"}) ==
        "--data b.jsonl: has no weight, others have; give every file one, or none");
  CHECK(error({"a.jsonl", "b.jsonl:1"}) ==
        "--data a.jsonl: has no weight, others have; give every file one, or none");
}
