#include "core/data/example_set.h"

#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe::data;
using namespace moe::test;

namespace {

std::string show(std::vector<int32_t> ids, std::vector<int32_t> labels, bool colour) {
  const auto piece = [](int64_t id) {
    return id == 1   ? "<s>"
           : id == 2 ? "</s>"
           : id == 9 ? "\033[2J"
                     : "\u2581w" + std::to_string(id);
  };
  const Example example{std::move(ids), std::move(labels), 0, 3};
  return show_example(example, "a.jsonl line 3", piece, colour);
}

}  // namespace

TEST_CASE("An example is shown with its loss in brackets or in green", "[data]") {
  const std::vector<int32_t> ids = {1, 5, 6, 2, 7, 8, 2}, labels = {-100, -100, 6, 2, -100, 8, 2};
  const std::string head = "a.jsonl line 3: 7 tokens, 4 with loss\n<s> ▁w5 ";
  CHECK(show(ids, labels, false) == head + "⟦▁w6 </s>⟧ ▁w7 ⟦▁w8 </s>⟧\n");
  CHECK(show(ids, labels, true) == head + "\033[32m▁w6 </s>\033[0m ▁w7 \033[32m▁w8 </s>\033[0m\n");
  // The first token has no loss, other labels follow an arrow, and control characters are replaced.
  CHECK(show({5, 6, 9}, {5, 7, 9}, false) ==
        "a.jsonl line 3: 3 tokens, 2 with loss\n▁w5 ⟦▁w6→▁w7 ?[2J⟧\n");
}

TEST_CASE("The weight of a source follows its last colon", "[data]") {
  const TempDir dir;
  write_file(dir / "a:0.5", "x");
  const std::string path = dir / "a:0.5";
  struct Case {
    std::string word, file;
    double weight;
  };
  for (const auto& [word, file, weight] :
       std::vector<Case>{{"dir/b.jsonl", "dir/b.jsonl", 0},
                         {"a.jsonl:0.7", "a.jsonl", 0.7},
                         {"b:c.jsonl:3e-1", "b:c.jsonl", 0.3},
                         {"c:2", "c", 2},
                         {"s3:bucket", "s3:bucket", 0},  // no number
                         {path, path, 0},                // a file of that name exists
                         {path + ":0.25", path, 0.25}}) {
    CAPTURE(word);
    const Source source = parse_sources({word}).at(0);
    CHECK(source.file == file);
    CHECK(source.weight == weight);
  }
  CHECK(parse_sources({"a.jsonl", "dir/b.jsonl"}).size() == 2);
}

TEST_CASE("Invalid weights, and weights of some sources only, are refused", "[data]") {
  const auto error = [](const std::vector<std::filesystem::path>& words) {
    return user_error_of([&] { parse_sources(words); });
  };
  for (const char* weight : {"0", "-1", "nan", "inf", "1e999"}) {
    const std::string word = std::string("a.jsonl:") + weight;
    CHECK_THAT(error({word}), contains_text("--data " + word + ": the weight after the colon"));
  }
  CHECK_THAT(error({"a.jsonl:1", "b.jsonl"}), contains_text("--data b.jsonl: has no weight"));
  CHECK_THAT(error({"a.jsonl", "b.jsonl:1"}), contains_text("--data a.jsonl: has no weight"));
}
