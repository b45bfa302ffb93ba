#include "core/data/batches.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "core/base/random.h"
#include "tests/support/catch.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::data;

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
  return Examples::in_memory(std::move(items), {"numbers.jsonl"});
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
