#include "core/train/observe/history.h"
#include "tests/support/catch.h"
#include "tests/support/matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/user_error.h"

using namespace moe;
using namespace moe::train;
using namespace moe::test;
namespace fs = std::filesystem;

namespace {

std::string line(int64_t step) { return Json{{"step", step}, {"loss", 0.5}}.dump() + "\n"; }

std::string lines(int64_t first, int64_t last) {
  std::string text;
  for (int64_t step = first; step <= last; ++step) {
    text += line(step);
  }
  return text;
}

// The file after keep_steps(), the steps of its callback and its return value.
struct Kept {
  std::string text;
  std::vector<int64_t> steps;
  int64_t damaged = 0;
};

Kept keep(const std::string& text, int64_t steps) {
  const TempDir dir;
  write_file(dir / "metrics.jsonl", text);
  Kept kept;
  StepLines file(dir / "metrics.jsonl", LinesPerStep::kOne);
  kept.damaged =
      file.keep_steps(steps, [&](const Json& json) { kept.steps.push_back(json["step"]); });
  file.append(R"({"step": 99})", 99);
  kept.text = read_file(dir / "metrics.jsonl");
  const std::string last = "{\"step\": 99}\n";
  REQUIRE(kept.text.ends_with(last));
  CHECK(file.mark().bytes == kept.text.size());
  kept.text.resize(kept.text.size() - last.size());
  CHECK(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);
  return kept;
}

}  // namespace

TEST_CASE("lines of later steps and an unfinished line are removed", "[train]") {
  CHECK(keep(lines(1, 9), 4).text == lines(1, 4));
  CHECK(keep(lines(0, 9), 4).text == lines(0, 4));
  CHECK(keep(lines(1, 4) + R"({"step": 5)", 9).text == lines(1, 4));
  CHECK(keep(lines(1, 4), -1).text.empty());
  CHECK(keep("", 4).text.empty());
}

TEST_CASE("lines after a gap are kept up to the step", "[train]") {
  const Kept kept = keep(lines(1, 10) + lines(21, 45), 40);
  CHECK(kept.text == lines(1, 10) + lines(21, 40));
  CHECK(kept.damaged == 0);
  CHECK(kept.steps.size() == 30);
}

TEST_CASE("invalid lines are removed and the lines around them kept", "[train]") {
  const auto junk = GENERATE(std::string("{broken\n"), std::string("[1]\n"), std::string("\n"),
                             std::string(100, '\0') + "\n", std::string("{\"step\": \"x\"}\n"),
                             std::string("{\"step\": 3}\n"), std::string("{\"step\": 77}\n"));
  const Kept kept = keep(lines(1, 5) + junk + lines(6, 9), 8);
  CHECK(kept.text == lines(1, 5) + lines(6, 8));
  CHECK(kept.damaged == 1);
  CHECK((kept.steps == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  CHECK(keep(lines(1, 5) + junk, 5).text == lines(1, 5));
}

TEST_CASE("a file is cut at a mark only if a line of that step ends there", "[train]") {
  const TempDir dir;
  const fs::path file = dir / "metrics.jsonl";
  const auto cuts = [&](const LinesMark& mark) {
    write_file(file, lines(1, 30));
    StepLines open(file, LinesPerStep::kOne);
    const bool is_cut = open.cut_at(mark);
    CHECK(read_file(file) == (is_cut ? lines(1, 30).substr(0, mark.bytes) : lines(1, 30)));
    return is_cut;
  };
  const uint64_t bytes = lines(1, 20).size();
  CHECK(cuts({bytes, 20}));
  CHECK(cuts({0, -1}));
  CHECK(cuts({lines(1, 30).size(), 30}));
  CHECK_FALSE(cuts({bytes, 19}));
  CHECK_FALSE(cuts({bytes - 1, 20}));
  CHECK_FALSE(cuts({bytes + 1, 20}));
  CHECK_FALSE(cuts({lines(1, 31).size(), 31}));  // the file is shorter
}

TEST_CASE("a line longer than a read block is found", "[train]") {
  const TempDir dir;
  const std::string text = line(1) + Json{{"step", 2}, {"x", std::string(200'000, 'x')}}.dump();
  write_file(dir / "metrics.jsonl", text + "\n" + std::string(150'000, 'y'));
  StepLines file(dir / "metrics.jsonl", LinesPerStep::kOne);
  CHECK(read_file(dir / "metrics.jsonl") == text + "\n");
  CHECK(file.cut_at({text.size() + 1, 2}));
}

TEST_CASE("a symbolic link or a folder in place of the file is refused", "[train]") {
  const TempDir dir;
  write_file(dir / "other", "not of this run");
  fs::create_symlink(dir / "other", dir / "metrics.jsonl");
  const auto check_refused = [&] {
    CHECK_THAT(test::user_error_of([&] { StepLines(dir / "metrics.jsonl", LinesPerStep::kOne); }),
               test::contains_text((dir / "metrics.jsonl").string()));
  };
  check_refused();
  CHECK(read_file(dir / "other") == "not of this run");
  fs::remove(dir / "metrics.jsonl");
  fs::create_directory(dir / "metrics.jsonl");
  check_refused();
}
