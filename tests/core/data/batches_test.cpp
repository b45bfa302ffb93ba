#include "core/data/batches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "core/base/error.h"
#include "core/base/random.h"
#include "core/data/examples.h"
#include "tests/support/byte_codec.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

// Returns examples of the given lengths with consecutive ids 0, 1, 2, ... Every third label is
// without loss.
Examples numbered(const std::vector<int64_t>& lengths) {
  std::vector<Example> items;
  int32_t next = 0;
  for (const int64_t length : lengths) {
    Example example;
    example.line = static_cast<int64_t>(items.size()) + 1;
    for (int64_t t = 0; t < length; ++t, ++next) {
      example.ids.push_back(next);
      example.labels.push_back(next % 3 == 0 ? kNoLoss : next);
    }
    items.push_back(example);
  }
  return in_memory(std::move(items), {"numbers.jsonl"});
}

// Returns true if the id is the last of an example.
bool ends_example(const Examples& examples, int64_t id) {
  for (int64_t index = 0; index < examples.size(); ++index) {
    if (examples.at(index).ids.back() == id) {
      return true;
    }
  }
  return false;
}

struct Rows {
  std::vector<std::vector<int64_t>> ids, targets;
  bool operator==(const Rows&) const = default;
};

void append(Rows& rows, const Batch& batch) {
  size_t at = 0;
  for (const int64_t length : batch.lengths) {
    const auto end = at + static_cast<size_t>(length);
    rows.ids.emplace_back(batch.ids.begin() + at, batch.ids.begin() + end);
    rows.targets.emplace_back(batch.targets.begin() + at, batch.targets.begin() + end);
    at = end;
  }
}

Rows take(BatchStream& stream, int64_t batches) {
  Rows rows;
  for (int64_t i = 0; i < batches; ++i) {
    append(rows, stream.next());
  }
  return rows;
}

std::vector<int64_t> shifted(const std::vector<int64_t>& labels) {
  std::vector<int64_t> targets(labels.begin() + 1, labels.end());
  targets.push_back(kNoLoss);
  return targets;
}

// Packs by concatenating all epochs and cutting the result into rows.
Rows pack_slowly(const Examples& examples, const BatchSettings& settings, int64_t epochs,
                 size_t rows_wanted) {
  std::vector<int64_t> ids, labels;
  Rows rows;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    std::vector<int64_t> order(static_cast<size_t>(examples.size()));
    std::iota(order.begin(), order.end(), 0);
    if (settings.shuffle) {
      order = shuffled_order(static_cast<int64_t>(order.size()), settings.seed, epoch);
    }
    for (const int64_t index : order) {
      const Example example = examples.at(index);
      ids.insert(ids.end(), example.ids.begin(), example.ids.end());
      labels.insert(labels.end(), example.labels.begin(), example.labels.end());
      if (settings.pack == Pack::kNone) {
        rows.ids.push_back(ids);
        rows.targets.push_back(shifted(labels));
        ids.clear();
        labels.clear();
      }
    }
  }
  const auto length = static_cast<size_t>(settings.seq_len);
  for (size_t at = 0; settings.pack == Pack::kStream && at + length <= ids.size(); at += length) {
    rows.ids.emplace_back(ids.begin() + at, ids.begin() + at + length);
    rows.targets.push_back(shifted({labels.begin() + at, labels.begin() + at + length}));
  }
  REQUIRE(rows.ids.size() >= rows_wanted);
  rows.ids.resize(rows_wanted);
  rows.targets.resize(rows_wanted);
  return rows;
}

// A store of one example that fails after `good` reads.
class FailingStore : public ExampleStore {
 public:
  explicit FailingStore(int good) : good_(good) {}
  int64_t size() const override { return 1; }
  int64_t length(int64_t /*index*/) const override { return 4; }
  int64_t line(int64_t /*index*/) const override { return 1; }
  void append(int64_t /*index*/, int64_t begin, int64_t end, std::vector<int64_t>& ids,
              std::vector<int32_t>& labels) const override {
    if (reads_++ == good_) {
      throw std::runtime_error("the disk is gone");
    }
    ids.insert(ids.end(), static_cast<size_t>(end - begin), 5);
    labels.insert(labels.end(), static_cast<size_t>(end - begin), 5);
  }

 private:
  int good_;
  mutable int reads_ = 0;
};

std::vector<std::string> names_of(size_t files) {
  std::vector<std::string> names;
  for (size_t file = 0; file < files; ++file) {
    names.push_back("file" + std::to_string(file));
  }
  return names;
}

size_t file_of(const std::vector<MixedFile>& files, int64_t example) {
  for (size_t file = 0; file < files.size(); ++file) {
    if (example >= files[file].begin && example < files[file].begin + files[file].count) {
      return file;
    }
  }
  return files.size();
}

}  // namespace

TEST_CASE("A document mask splits the same rows at the ends of examples", "[data]") {
  const Examples examples = numbered({3, 5, 2, 7, 1, 2, 9});
  for (const int64_t seq_len : {4, 5, 64}) {
    BatchSettings settings{Pack::kStream, true, seq_len, 3, 11};
    BatchStream causal(examples, settings);
    settings.mask = PackMask::kDoc;
    BatchStream documents(examples, settings);
    for (int i = 0; i < 8; ++i) {
      const Batch whole = causal.next(), cut = documents.next();
      CHECK(cut.ids == whole.ids);
      CHECK(documents.cursor() == causal.cursor());
      std::vector<int64_t> lengths, targets = whole.targets;
      int64_t length = 0, missing = 0;
      for (size_t t = 0; t < whole.ids.size(); ++t) {
        ++length;
        const bool row_ends = (t + 1) % static_cast<size_t>(seq_len) == 0;
        const bool ends = row_ends || ends_example(examples, whole.ids[t]);
        if (ends) {
          missing += targets[t] == kNoLoss ? 0 : 1;
          targets[t] = kNoLoss;
          lengths.push_back(length);
          length = 0;
        }
      }
      CHECK(cut.lengths == lengths);
      CHECK(cut.targets == targets);
      CHECK(cut.target_count == whole.target_count - missing);
    }
  }
}

TEST_CASE("Batches equal those of a packer that concatenates all epochs", "[data]") {
  const std::vector<std::vector<int64_t>> tables = {
      {3, 5, 2, 7, 4, 2, 9}, {2}, {4, 4, 4}, {17, 2, 2}, {2, 2, 2, 2, 31}};
  for (const auto& lengths : tables) {
    const Examples examples = numbered(lengths);
    for (const Pack pack : {Pack::kStream, Pack::kNone}) {
      for (const bool shuffle : {true, false}) {
        for (const int64_t seq_len : {2, 4, 5, 31, 64}) {
          const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
          if (pack == Pack::kNone && longest > seq_len) {
            continue;
          }
          const BatchSettings settings{pack, shuffle, seq_len, 3, 11};
          BatchStream stream(examples, settings);
          CHECK(take(stream, 8) == pack_slowly(examples, settings, 2000, 24));
        }
      }
    }
  }
}

TEST_CASE("A stream resumed at any cursor gives the same batches", "[data]") {
  const Examples examples = numbered({3, 5, 2, 7, 4, 2, 9});
  for (const Pack pack : {Pack::kStream, Pack::kNone}) {
    const BatchSettings settings{pack, true, 11, 2, 5};
    BatchStream stream(examples, settings);
    for (int stop = 0; stop < 12; ++stop) {
      const Cursor cursor = stream.cursor();
      BatchStream resumed(examples, settings, cursor);
      BatchStream original = stream;
      CHECK(take(resumed, 5) == take(original, 5));
      stream.next();
    }
  }
}

TEST_CASE("A cursor outside the examples is refused with its field and range", "[data]") {
  const Examples examples = numbered({3, 5, 2});
  const BatchSettings settings{Pack::kStream, false, 4, 2, 0};
  const auto refusal = [&](const Cursor& cursor) {
    return test::user_error_of([&] { BatchStream(examples, settings, cursor); });
  };
  CHECK(refusal({0, 2, 1}).empty());
  for (const auto& [cursor, fact] : std::vector<std::pair<Cursor, const char*>>{
           {{0, 3, 0}, "cursor.example is 3, 0 to 2 "},
           {{0, -1, 0}, "cursor.example is -1, 0 to 2 "},
           {{0, 2, 2}, "cursor.offset is 2, 0 to 1 "},
           {{0, 1, -1}, "cursor.offset is -1, 0 to 4 "},
           {{-1, 0, 0}, "cursor.epoch is -1, "},
           {{int64_t{1} << 62, 0, 0}, "cursor.epoch is 4611686018427387904, "}}) {
    CHECK(refusal(cursor).starts_with(fact));
  }
}

TEST_CASE("A batch counts its targets; the last position of a row has none", "[data]") {
  const Examples examples = numbered({4, 3});
  BatchStream stream(examples, {Pack::kNone, false, 8, 2, 0});
  const Batch batch = stream.next();
  CHECK(batch.ids == std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(batch.targets == std::vector<int64_t>{1, 2, -100, -100, 5, -100, -100});
  CHECK(batch.lengths == std::vector<int64_t>{4, 3});
  CHECK(batch.target_count == 3);
  CHECK(stream.rows_per_epoch() == 2);
  CHECK(BatchStream(examples, {Pack::kStream, false, 4, 2, 0}).rows_per_epoch() == Approx(7.0 / 4));
}

TEST_CASE("An example longer than the row is refused with its line", "[data]") {
  const Examples examples = numbered({4, 9});
  CHECK(test::user_error_of([&] {
          BatchStream(examples, {Pack::kNone, true, 8, 2, 0});
        }).starts_with("numbers.jsonl line 2: the example has 9 tokens, --seq-len is 8"));
  CHECK_NOTHROW(BatchStream(examples, {Pack::kStream, true, 8, 2, 0}));
}

TEST_CASE("A shuffled order is a permutation that depends on seed and epoch alone", "[data]") {
  const auto order = shuffled_order(1000, 7, 0);
  auto sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int64_t i = 0; i < 1000; ++i) {
    REQUIRE(sorted[static_cast<size_t>(i)] == i);
  }
  CHECK(order == shuffled_order(1000, 7, 0));
  CHECK(order != shuffled_order(1000, 7, 1));
  CHECK(order != shuffled_order(1000, 8, 0));
  CHECK(shuffled_order(1000, 7, 1) != shuffled_order(1000, 8, 0));
  CHECK(shuffled_order(0, 7, 0).empty());
}

TEST_CASE("SplitMix64 gives the published sequence", "[data]") {
  SplitMix64 random(1234567);  // Vigna's splitmix64.c with this seed
  CHECK(random.next() == 6457827717110365317ULL);
  CHECK(random.next() == 3203168211198807973ULL);
  CHECK(random.next() == 9817491932198370423ULL);
}

TEST_CASE("Every order of three examples is equally likely", "[data]") {
  // 6000 epochs, 6 orders: mean 1000, standard deviation sqrt(6000 * 1/6 * 5/6) = 28.9, times 5.
  std::map<std::vector<int64_t>, int> seen;
  for (int64_t epoch = 0; epoch < 6000; ++epoch) {
    ++seen[shuffled_order(3, 3, epoch)];
  }
  REQUIRE(seen.size() == 6);
  for (const auto& [order, count] : seen) {
    CHECK(std::abs(count - 1000) < 145);
  }
}

TEST_CASE("Prefetched and resumed steps are those of the stream, with its cursor", "[data]") {
  const Examples examples = numbered({3, 4, 5, 6, 7, 3, 4, 5, 6, 7});
  const BatchSettings settings{Pack::kStream, true, 7, 2, 3};
  BatchStream stream(examples, settings);
  StepLoader whole(BatchStream(examples, settings), 3);
  for (int step = 0; step < 30; ++step) {
    // Destroyed with prefetched steps.
    StepLoader resumed(BatchStream(examples, settings, stream.cursor()), 3);
    const StepBatches a = whole.next(), b = resumed.next();
    REQUIRE((a.batches.size() == 3 && b.batches.size() == 3));
    for (size_t i = 0; i < 3; ++i) {
      const Batch expected = stream.next();
      CHECK((a.batches[i].ids == expected.ids && b.batches[i].ids == expected.ids));
      CHECK(a.batches[i].targets == expected.targets);
    }
    CHECK((a.cursor == stream.cursor() && b.cursor == stream.cursor()));
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

TEST_CASE("An epoch interleaves files by weight and continues the last epoch", "[data]") {
  // 6 examples per epoch, 3 of each file. The first file has examples 0 to 3, the second 4 and 5.
  const Mixture mixture({{0, 4, 1}, {4, 2, 1}}, names_of(2));
  CHECK(mixture.draws(0) == 3);
  CHECK(mixture.order(false, 7, 0) == std::vector<int64_t>{0, 4, 1, 5, 2, 4});
  CHECK(mixture.order(false, 7, 1) == std::vector<int64_t>{3, 5, 0, 4, 1, 5});
  const Mixture uneven({{0, 4, 3}, {4, 4, 1}}, names_of(2));
  CHECK(uneven.order(false, 7, 0) == std::vector<int64_t>{0, 1, 4, 2, 3, 0, 5, 1});
}

TEST_CASE("After any number of draws each file has its share to within one", "[data]") {
  SplitMix64 random(5);
  for (int trial = 0; trial < 100; ++trial) {
    const size_t count = 2 + random.below(7);
    std::vector<MixedFile> files;
    int64_t begin = 0;
    double weights = 0;
    for (size_t file = 0; file < count; ++file) {
      const auto examples = static_cast<int64_t>(20 + random.below(60));
      const double weight = 0.1 + static_cast<double>(random.below(1000)) / 100;
      files.push_back({begin, examples, weight});
      begin += examples;
      weights += weight;
    }
    const Mixture mixture(files, names_of(count));
    std::vector<int64_t> drawn(count, 0);
    int64_t draws = 0;
    double worst = 0;
    for (const int64_t example : mixture.order(true, 1, 3)) {
      ++drawn.at(file_of(files, example));
      ++draws;
      for (size_t file = 0; file < count; ++file) {
        const double share = files[file].weight / weights * static_cast<double>(draws);
        worst = std::max(worst, std::abs(share - static_cast<double>(drawn[file])));
      }
    }
    CHECK(draws == begin);
    // Tijdeman (1980): at most 1 - 1 / (2 m - 2) for m files.
    CHECK(worst <= 1 - 1 / (2 * static_cast<double>(count) - 2) + 1e-9);
  }
}

TEST_CASE("A pass over a file gives each example once, in a new order", "[data]") {
  const std::vector<MixedFile> files = {{0, 50, 1}, {50, 50, 1}};
  const Mixture mixture(files, names_of(2));
  std::vector<std::vector<int64_t>> seen(2);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (const int64_t example : mixture.order(true, 9, epoch)) {
      seen[file_of(files, example)].push_back(example % 50);
    }
  }
  for (const auto& file : seen) {
    REQUIRE(file.size() == 150);
    for (size_t pass = 0; pass < 3; ++pass) {
      CHECK(std::set<int64_t>(file.begin() + static_cast<long>(pass) * 50,
                              file.begin() + static_cast<long>(pass + 1) * 50)
                .size() == 50);
    }
    CHECK(std::vector<int64_t>(file.begin(), file.begin() + 50) !=
          std::vector<int64_t>(file.begin() + 50, file.begin() + 100));
  }
  CHECK(seen[0] != seen[1]);
  CHECK(mixture.order(true, 9, 1) == Mixture(files, names_of(2)).order(true, 9, 1));
  CHECK(mixture.order(true, 9, 1) != mixture.order(true, 10, 1));
}

TEST_CASE("A weight that draws no example is refused", "[data]") {
  CHECK(user_error_of([] {
          Mixture({{0, 5, 1000}, {5, 5, 1}}, names_of(2));
        }).starts_with("--data file1: a weight of 1 among 1001 draws none of its examples"));
}

TEST_CASE("A stream of mixed files resumes from its cursor and counts its tokens", "[data]") {
  const TempDir dir;
  std::string first, second;
  for (int i = 0; i < 30; ++i) {
    first += R"({"prompt": "p", "response": "r"})"
             "\n";  // 4 tokens
    second += R"({"prompt": "longer", "response": "answer"})"
              "\n";  // 14 tokens
  }
  write_file(dir / "a", first);
  write_file(dir / "b", second);
  const auto examples = read_examples({{dir / "a", 3}, {dir / "b", 1}}, {}, kVocab, byte_codec);
  BatchSettings settings;
  settings.seq_len = 10;
  settings.rows = 2;
  BatchStream whole(examples, settings);
  CHECK(whole.rows_per_epoch() == Approx((45 * 4 + 15 * 14) / 10.0));
  for (int batch = 0; batch < 50; ++batch) {  // 2.5 epochs
    BatchStream resumed(examples, settings, whole.cursor());
    CHECK(whole.next().ids == resumed.next().ids);
    CHECK(whole.cursor() == resumed.cursor());
  }
  CHECK(whole.cursor().epoch == 2);
}
