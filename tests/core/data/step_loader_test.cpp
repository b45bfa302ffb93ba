#include "core/base/error.h"
#include "core/data/batches.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::data;

namespace {

Examples some_examples() {
  std::vector<Example> items;
  for (int32_t index = 0; index < 20; ++index) {
    Example example;
    example.line = index + 1;
    for (int32_t t = 0; t < 3 + index % 5; ++t) {
      example.ids.push_back(100 * index + t);
      example.labels.push_back(100 * index + t);
    }
    items.push_back(example);
  }
  return Examples::in_memory(std::move(items), {"numbers"});
}

// A store of one example that fails after `good` reads.
class FailingStore : public ExampleStore {
 public:
  explicit FailingStore(int good) : good_(good) {}
  int64_t size() const override { return 1; }
  int64_t length(int64_t /*index*/) const override { return 4; }
  int64_t line(int64_t /*index*/) const override { return 1; }
  void add_ids(int64_t /*index*/, int64_t begin, int64_t end,
               std::vector<int64_t>& ids) const override {
    if (reads_++ == good_) {
      throw std::runtime_error("the disk is gone");
    }
    ids.insert(ids.end(), static_cast<size_t>(end - begin), 5);
  }
  void add_labels(int64_t /*index*/, int64_t begin, int64_t end,
                  std::vector<int32_t>& labels) const override {
    labels.insert(labels.end(), static_cast<size_t>(end - begin), 5);
  }

 private:
  int good_;
  mutable int reads_ = 0;
};

}  // namespace

TEST_CASE("Prefetched steps are those of the stream, each with the next cursor", "[data]") {
  const Examples examples = some_examples();
  const BatchSettings settings{Pack::kStream, true, 7, 2, 3};
  BatchStream stream(examples, settings);
  StepLoader loader(BatchStream(examples, settings), 3);
  for (int step = 0; step < 30; ++step) {
    const StepBatches made = loader.next();
    REQUIRE(made.batches.size() == 3);
    for (const auto& batch : made.batches) {
      const Batch expected = stream.next();
      CHECK(batch.ids == expected.ids);
      CHECK(batch.targets == expected.targets);
    }
    CHECK(made.cursor == stream.cursor());
  }
}

TEST_CASE("A loader resumed at the cursor of a step gives the same steps", "[data]") {
  const Examples examples = some_examples();
  const BatchSettings settings{Pack::kStream, true, 7, 2, 3};
  StepLoader whole(BatchStream(examples, settings), 2);
  Cursor cursor;
  for (int step = 0; step < 12; ++step) {
    // Destroyed with prefetched steps.
    StepLoader resumed(BatchStream(examples, settings, cursor), 2);
    const StepBatches a = whole.next(), b = resumed.next();
    CHECK(a.batches[0].ids == b.batches[0].ids);
    CHECK(a.batches[1].ids == b.batches[1].ids);
    CHECK(a.cursor == b.cursor);
    cursor = a.cursor;
  }
}

TEST_CASE("An error of the thread is thrown after the steps before it, and again", "[data]") {
  Examples examples;
  examples.files = {"gone"};
  examples.ranges = {{0, 1, 4}};
  examples.store = std::make_shared<FailingStore>(5);
  StepLoader loader(BatchStream(examples, {Pack::kStream, false, 4, 1, 0}), 2);
  CHECK(loader.next().batches.size() == 2);
  CHECK(loader.next().batches.size() == 2);
  CHECK_THROWS_WITH(loader.next(), "the disk is gone");
  CHECK_THROWS_WITH(loader.next(), "the disk is gone");
}
