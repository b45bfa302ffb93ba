// What --dry-run foretells against what the process then takes, on a model large enough that the
// program itself is the smaller part.

#include <fmt/format.h>

#include <fstream>

#include "core/base/json.h"
#include "tests/support/catch.h"
#include "tests/support/run_binary.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

using namespace moe;
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
    peak = parse_json(line, "metrics.jsonl").at("peak_memory_bytes").get<uint64_t>();
  }
  return peak;
}

}  // namespace

TEST_CASE("--dry-run foretells the peak of memory within 10 %, class by class", "[cli]") {
  const TempDir dir;
  test::TinyCheckpoint shape;
  shape.hidden = 256;
  shape.intermediate = 704;
  shape.layers = 4;
  shape.heads = shape.kv_heads = 8;
  shape.vocab = 32000;
  shape.max_positions = 512;
  std::ofstream(dir / "config.json") << test::tiny_config(shape);
  const auto init = run_moe({"init",
                             (dir / "config.json").string(),
                             "-o",
                             (dir / "model").string(),
                             "--experts",
                             "8",
                             "--router",
                             "top2:cf=inf"});
  REQUIRE(init.exit_code == 0);
  write_rows(dir / "rows.jsonl");
  const std::vector<std::vector<std::string>> variants = {{},
                                                          {"--recompute", "layer"},
                                                          {"--precision", "bf16"},
                                                          {"--lora", "8"},
                                                          {"--save-every", "1"},
                                                          {"--optimizer-state", "bf16"}};
  for (size_t i = 0; i < variants.size(); ++i) {
    CAPTURE(variants[i]);
    const auto run = dir / fmt::format("run{}", i);
    std::vector<std::string> words = {"train",
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
    words.insert(words.end(), variants[i].begin(), variants[i].end());
    auto planning = words;
    planning.insert(planning.end(), {"--dry-run", "--json"});
    const auto dry = run_moe(planning);
    REQUIRE(dry.exit_code == 0);
    const Json foretold = parse_json(dry.out, "--dry-run");
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
