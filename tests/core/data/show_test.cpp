#include "core/data/example_set.h"
#include "tests/support/catch.h"

using namespace moe::data;

namespace {

std::string piece(int64_t id) {
  return id == 1 ? "<s>" : id == 2 ? "</s>" : id == 9 ? "\033[2J" : "\u2581w" + std::to_string(id);
}

std::string show(std::vector<int32_t> ids, std::vector<int32_t> labels, bool colour) {
  const Example example{std::move(ids), std::move(labels), 0, 3};
  return show_example(example, "a.jsonl line 3", piece, colour);
}

}  // namespace

TEST_CASE("tokens that carry loss stand between brackets, or in green", "[data]") {
  const std::vector<int32_t> ids = {1, 5, 6, 2, 7, 8, 2}, labels = {-100, -100, 6, 2, -100, 8, 2};
  CHECK(show(ids, labels, false) ==
        "a.jsonl line 3: 7 tokens, 4 with loss\n<s> ▁w5 ⟦▁w6 </s>⟧ ▁w7 ⟦▁w8 </s>⟧\n");
  CHECK(show(ids, labels, true) ==
        "a.jsonl line 3: 7 tokens, 4 with loss\n"
        "<s> ▁w5 \033[32m▁w6 </s>\033[0m ▁w7 \033[32m▁w8 </s>\033[0m\n");
}

TEST_CASE("the first token is never learned, a label of its own is shown, nothing moves the cursor",
          "[data]") {
  CHECK(show({5, 6, 9}, {5, 7, 9}, false) ==
        "a.jsonl line 3: 3 tokens, 2 with loss\n▁w5 ⟦▁w6→▁w7 ?[2J⟧\n");
}
