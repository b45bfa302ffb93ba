#include <atomic>
#include <chrono>

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

// One example that is given out `good` times, then the disk fails; counts what was asked of it.
class FailingStore : public ExampleStore {
 public:
  explicit FailingStore(int good) : good_(good) {}
  int64_t size() const override { return 1; }
  int64_t length(int64_t /*index*/) const override { return 4; }
  int64_t line(int64_t /*index*/) const override { return 1; }
  void add_ids(int64_t /*index*/, int64_t begin, int64_t end,
               std::vector<int64_t>& ids) const override {
    if (asked++ == good_) {
      throw std::runtime_error("the disk is gone");
    }
    ids.insert(ids.end(), static_cast<size_t>(end - begin), 5);
  }
  void add_labels(int64_t /*index*/, int64_t begin, int64_t end,
                  std::vector<int32_t>& labels) const override {
    labels.insert(labels.end(), static_cast<size_t>(end - begin), 5);
  }
  mutable std::atomic<int> asked = 0;

 private:
  int good_;
};

Examples failing(const std::shared_ptr<FailingStore>& store) {
  Examples examples;
  examples.files = {"gone"};
  examples.ranges = {{0, 1, 4}};
  examples.store = store;
  return examples;
}

}  // namespace

TEST_CASE("steps made ahead are those of the stream, each with the cursor behind it", "[data]") {
  const Examples examples = some_examples();
  for (const size_t ahead : {1, 2, 5}) {
    const BatchSettings settings{Pack::kStream, true, 7, 2, 3};
    BatchStream stream(examples, settings);
    StepLoader loader(BatchStream(examples, settings), 3, ahead);
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
}

TEST_CASE("a loader taken up at a step's cursor goes on as if it had never stopped", "[data]") {
  const Examples examples = some_examples();
  const BatchSettings settings{Pack::kStream, true, 7, 2, 3};
  StepLoader whole(BatchStream(examples, settings), 2);
  Cursor cursor;
  for (int step = 0; step < 12; ++step) {
    // Destroyed with steps made ahead that nobody took.
    StepLoader resumed(BatchStream(examples, settings, cursor), 2);
    const StepBatches a = whole.next(), b = resumed.next();
    CHECK(a.batches[0].ids == b.batches[0].ids);
    CHECK(a.batches[1].ids == b.batches[1].ids);
    CHECK(a.cursor == b.cursor);
    cursor = a.cursor;
  }
}

TEST_CASE("an error of the thread comes after the steps before it, and stays", "[data]") {
  const auto store = std::make_shared<FailingStore>(5);
  const Examples examples = failing(store);
  StepLoader loader(BatchStream(examples, {Pack::kStream, false, 4, 1, 0}), 2, 2);
  CHECK(loader.next().batches.size() == 2);
  CHECK(loader.next().batches.size() == 2);
  CHECK_THROWS_WITH(loader.next(), "the disk is gone");
  CHECK_THROWS_WITH(loader.next(), "the disk is gone");
}

TEST_CASE("no more steps are made ahead than asked for", "[data]") {
  const auto store = std::make_shared<FailingStore>(1 << 30);
  const Examples examples = failing(store);
  StepLoader loader(BatchStream(examples, {Pack::kStream, false, 4, 1, 0}), 1, 2);
  for (int step = 1; step <= 20; ++step) {
    loader.next();
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (store->asked < step + 2 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::yield();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    CHECK(store->asked == step + 2);
  }
}
