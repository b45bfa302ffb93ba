// What --dry-run foretells against what the process then takes, on a model large enough that the
// program itself is the smaller part.

#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/foreign_checkpoint.h"
#include "tests/support/matchers.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
using moe::test::contains_text;
using moe::test::run_moe;
using moe::test::TempDir;

namespace {

void write_rows(const std::filesystem::path& file) {
  std::ofstream out(file);
  for (int row = 0; row < 8; ++row) {
    std::vector<int> ids(512);
    for (int t = 0; t < 512; ++t) {
      ids[static_cast<size_t>(t)] = 3 + (row * 977 + t * 131) % 30000;
    }
    out << Json{{"input_ids", ids}, {"labels", ids}}.dump() << '\n';
  }
}

uint64_t last_peak(const std::filesystem::path& metrics) {
  std::ifstream in(metrics);
  uint64_t peak = 0;
  for (std::string line; std::getline(in, line);) {
    peak = parse_json(line, "metrics.jsonl").value("peak_memory_bytes", peak);  // not of step 0
  }
  return peak;
}

// A mixture and rows to train it on.
void make_model(const std::filesystem::path& dir) {
  test::TinyCheckpoint shape;
  shape.hidden = 256;
  shape.intermediate = 704;
  shape.layers = 4;
  shape.heads = shape.kv_heads = 8;
  shape.vocab = 32000;
  shape.max_positions = 512;
  std::ofstream(dir / "config.json") << test::tiny_config(shape);
  const auto init = run_moe({"init", (dir / "config.json").string(), "-o", (dir / "model").string(),
                             "--experts", "8", "--router", "top2:cf=inf"});
  REQUIRE(init.exit_code == 0);
  write_rows(dir / "rows.jsonl");
}

// The same with a wide shared expert beside narrow ones.
void make_shared_model(const std::filesystem::path& dir) {
  const test::ForeignCheckpoint shape = {.kind = test::Foreign::kQwen2Moe,
                                         .experts = 8,
                                         .expert_width = 128,
                                         .dense_layers = {1},
                                         .shared_width = 2816,
                                         .tiny = {.hidden = 256,
                                                  .intermediate = 704,
                                                  .layers = 4,
                                                  .heads = 8,
                                                  .kv_heads = 8,
                                                  .vocab = 32000,
                                                  .max_positions = 512}};
  std::ofstream(dir / "config.json") << test::foreign_config(shape);
  REQUIRE(
      run_moe({"init", (dir / "config.json").string(), "-o", (dir / "model").string()}).exit_code ==
      0);
  write_rows(dir / "rows.jsonl");
}

std::vector<std::string> training(const std::filesystem::path& dir) {
  return {"train",
          (dir / "model").string(),
          "--data",
          (dir / "rows.jsonl").string(),
          "--micro-batch",
          "4",
          "--seq-len",
          "512",
          "--steps",
          "2",
          "--threads",
          "1",
          "-q"};
}

Json dry_run(std::vector<std::string> words) {
  words.insert(words.end(), {"--dry-run", "--json"});
  const auto dry = run_moe(words);
  REQUIRE(dry.exit_code == 0);
  return parse_json(dry.out, "--dry-run");
}

}  // namespace

TEST_CASE("--dry-run foretells the peak of memory within 10 %, class by class", "[cli]") {
  const TempDir dir;
  make_model(dir.path());
  const std::vector<std::vector<std::string>> variants = {{},
                                                          {"--recompute", "layer"},
                                                          {"--precision", "bf16"},
                                                          {"--lora", "8"},
                                                          {"--save-every", "1"},
                                                          {"--optimizer-state", "bf16"}};
  for (size_t i = 0; i < variants.size(); ++i) {
    CAPTURE(variants[i]);
    const auto run = dir / fmt::format("run{}", i);
    std::vector<std::string> words = training(dir.path());
    words.insert(words.end(), variants[i].begin(), variants[i].end());
    const Json foretold = dry_run(words);
    CHECK_FALSE(std::filesystem::exists(run));
    uint64_t weights = foretold["weights_bytes"].get<uint64_t>();
    CHECK(foretold["optimizer_bytes"] ==
          (i == 5 ? 1 : 2) * foretold["gradients_bytes"].get<uint64_t>());
    CHECK((i == 3) == (foretold["gradients_bytes"].get<uint64_t>() < weights));
    CHECK((i == 4) == (foretold["checkpoint_bytes"].get<uint64_t>() > 0));
    words.insert(words.end(), {"-o", run.string()});
    REQUIRE(run_moe(words).exit_code == 0);
    const auto peak = static_cast<double>(foretold["peak_bytes"].get<uint64_t>());
    CHECK(peak == Approx(static_cast<double>(last_peak(run / "metrics.jsonl"))).epsilon(0.1));
  }
}

TEST_CASE("--dry-run foretells the peak with a shared expert within 10 %", "[cli]") {
  const TempDir dir;
  make_shared_model(dir.path());
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--recompute", "ffn"}, {"--lora", "8"}}) {
    CAPTURE(more);
    std::vector<std::string> words = training(dir.path());
    words.insert(words.end(), more.begin(), more.end());
    const auto peak = static_cast<double>(dry_run(words)["peak_bytes"].get<uint64_t>());
    words.insert(words.end(), {"-o", (dir / "run").string(), "--force"});
    REQUIRE(run_moe(words).exit_code == 0);
    CHECK(peak == Approx(static_cast<double>(last_peak(dir / "run/metrics.jsonl"))).epsilon(0.1));
  }
}

TEST_CASE("--dry-run counts the whole model that shared-out experts are evaluated in", "[cli]") {
  const TempDir dir;
  make_model(dir.path());
  auto words = training(dir.path());
  const uint64_t whole = dry_run(words)["weights_bytes"].get<uint64_t>();
  words.insert(words.end(), {"--ranks", "2"});
  CHECK(dry_run(words)["evaluation_bytes"] == 0);
  words.insert(words.end(), {"--eval-data", (dir / "rows.jsonl").string(), "--eval-rows", "2"});
  words.insert(words.end(), {"--eval-every", "1"});  // a step follows one, and says the peak
  const Json foretold = dry_run(words);
  CHECK(foretold["weights_bytes"].get<uint64_t>() < whole);
  CHECK(foretold["evaluation_bytes"] == whole);
  words.insert(words.end(), {"-o", (dir / "run").string()});
  words.erase(std::find(words.begin(), words.end(), "-q"));
  const auto run = run_moe(words);
  INFO(run.err);
  CHECK_THAT(run.err + run.out, contains_text("every process gathers the whole model, 0.1 GB"));
  REQUIRE(run.exit_code == 0);
  const auto peak = static_cast<double>(foretold["peak_bytes"].get<uint64_t>());
  CHECK(peak == Approx(static_cast<double>(last_peak(dir / "run/metrics.jsonl"))).epsilon(0.1));
}

TEST_CASE("--dry-run foretells the peak of processes that shard weights within 10 %", "[cli]") {
  const TempDir dir;
  test::TinyCheckpoint shape;
  shape.hidden = 512;
  shape.intermediate = 1408;
  shape.layers = 10;
  shape.heads = shape.kv_heads = 8;
  shape.vocab = 4000;
  shape.max_positions = 512;
  std::filesystem::create_directory(dir / "model");
  test::write_tiny_checkpoint(dir / "model", shape);
  std::ofstream rows(dir / "rows.jsonl");
  const std::vector<int> ids(512, 7);
  for (int row = 0; row < 8; ++row) {
    rows << Json{{"input_ids", ids}, {"labels", ids}}.dump() << '\n';
  }
  rows.close();
  std::vector<std::string> words = training(dir.path());
  words.insert(words.end(), {"--ranks", "2", "--global-batch", "8", "--recompute", "layer"});
  const uint64_t whole = dry_run(words)["peak_bytes"].get<uint64_t>();
  words.insert(words.end(), {"--shard", "weights"});
  const uint64_t foretold = dry_run(words)["peak_bytes"].get<uint64_t>();
  CHECK(foretold < whole);
  words.insert(words.end(), {"-o", (dir / "run").string()});
  const auto run = run_moe(words);
  INFO(run.err);
  REQUIRE(run.exit_code == 0);
  const auto peak = static_cast<double>(last_peak(dir / "run/metrics.jsonl"));
  CHECK(static_cast<double>(foretold) == Approx(peak).epsilon(0.1));
}
