#include <cmath>
#include <set>

#include "core/base/random.h"
#include "core/data/batches.h"
#include "core/data/examples.h"
#include "tests/support/byte_codec.h"
#include "tests/support/catch.h"

using namespace moe;
using namespace moe::data;
using namespace moe::test;

namespace {

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

TEST_CASE("An epoch in file order interleaves files by weight and continues the last epoch",
          "[data]") {
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
